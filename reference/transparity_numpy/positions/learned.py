"""Learned positions: rows of a table that is added to the embeddings."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.shapes import IsToken


def position_ids(
    config: TransformerConfig, is_token: IsToken, positions: Int[Array, "#batch length"]
) -> Int[Array, "#batch length"]:
    """Return the rows of the position table for the tokens at `positions`.

    With `position_count` "visible", only tokens that are not padding are counted, and padding has the row before the
    first (RoBERTa, OPT).
    """
    if config.position_count == "all":
        return positions + config.position_offset
    positions = np.broadcast_to(positions, (len(is_token), positions.shape[1]))
    counted = np.where(is_token, np.cumsum(is_token, axis=1), 0)
    return np.take_along_axis(counted, positions, axis=1) + config.position_offset - 1
