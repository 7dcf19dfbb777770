"""Learned positions: rows of a table that is added to the embeddings."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Int

from transparity.config import TransformerConfig
from transparity_flax.shapes import IsToken


def position_ids(
    config: TransformerConfig, is_token: IsToken, positions: Int[Array, "#batch length"]
) -> Int[Array, "#batch length"]:
    """Return the rows of the position table for the tokens at `positions`.

    With `position_count` "visible", only tokens that are not padding are counted, and padding has the row before the
    first (RoBERTa, OPT).
    """
    if config.position_count == "all":
        return positions + config.position_offset
    positions = jnp.broadcast_to(positions, (len(is_token), positions.shape[1]))
    counted = jnp.where(is_token, jnp.cumsum(is_token, axis=1), 0)
    return jnp.take_along_axis(counted, positions, axis=1) + config.position_offset - 1
