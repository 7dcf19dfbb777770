"""Positions that are rows of a learned table, added to the embeddings."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.shapes import Hidden, IsToken, Parameters, Positions
from transparity_numpy.state.context import Context


def position_ids(config: TransformerConfig, is_token: IsToken, positions: Positions) -> Positions:
    """Return the index of a row in the table of positions for the token at each of `positions`."""
    if config.position_count == "visible":  # padding gets −1, the row before the first token's row
        rows = np.broadcast_to(positions, (len(is_token), positions.shape[1]))
        positions = np.take_along_axis(np.where(is_token, np.cumsum(is_token, axis=1), 0), rows, axis=1) - 1
    return positions + config.position_offset


def add_learned(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    rows = position_ids(config, context.is_token, context.positions)
    table = parameters["position_embedding"]["weight"]
    return x + table[rows] * (rows >= 0)[..., np.newaxis]  # padding may have no row
