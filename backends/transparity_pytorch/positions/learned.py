"""Positions that are rows of a learned table, added to the embeddings."""

from __future__ import annotations

from typing import Any

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import Hidden, IsToken, Positions
from transparity_pytorch.state.context import Context


def position_ids(config: TransformerConfig, is_token: IsToken, positions: Positions) -> Positions:
    """Return the index of a row in the table of positions for the token at each of `positions`."""
    if config.position_count == "visible":  # padding gets −1, the row before the first token's row
        counts = is_token.cumsum(dim=1) * is_token
        positions = counts.take_along_dim(positions.expand(len(is_token), -1), dim=1) - 1
    return positions + config.position_offset


def add_learned(config: TransformerConfig, module: Any, x: Hidden, context: Context) -> Hidden:
    rows = position_ids(config, context.is_token, context.positions)
    return x + module.position_embedding(rows.clamp(min=0)) * (rows >= 0)[..., None]  # padding may have no row
