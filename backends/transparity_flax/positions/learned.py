"""Positions that are rows of a learned table, added to the embeddings."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from transparity.config import TransformerConfig
from transparity_flax.shapes import Hidden, IsToken, Positions
from transparity_flax.state.context import Context


def position_ids(config: TransformerConfig, is_token: IsToken, positions: Positions) -> Positions:
    """Return the index of a row in the table of positions for the token at each of `positions`."""
    if config.position_count == "visible":  # padding gets −1, the row before the first token's row
        rows = jnp.broadcast_to(positions, (len(is_token), positions.shape[1]))
        positions = jnp.take_along_axis(jnp.where(is_token, jnp.cumsum(is_token, axis=1), 0), rows, axis=1) - 1
    return positions + config.position_offset


def add_learned(config: TransformerConfig, module: Any, x: Hidden, context: Context) -> Hidden:
    rows = position_ids(config, context.is_token, context.positions)
    return x + module.position_embedding.embedding[rows] * (rows >= 0)[..., jnp.newaxis]  # padding may have no row
