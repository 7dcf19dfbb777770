"""Tokens and positions as vectors."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Float64, Int

from transparity.config import RopeLayout, TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(
    length: int, embed_dim: int, base: float = 10_000.0, pairs: RopeLayout = "interleaved"
) -> Float64[np.ndarray, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i, the cosine of the same angle beside it (document 003;
    Vaswani et al. 2017, §3.5), or all sines and then all cosines (Marian). Computed in float64, whatever the model's
    dtype: float32 angles lose digits.

    JAX has float64 only where it is switched on; the table is a constant, so NumPy computes it while tracing.
    """
    angles = np.arange(length)[:, None] / base ** (np.arange(0, embed_dim, 2) / embed_dim)
    both = [np.sin(angles), np.cos(angles)]
    if pairs == "halves":
        return np.concatenate(both, axis=-1)
    return np.stack(both, axis=-1).reshape(length, embed_dim)


def position_ids(
    config: TransformerConfig, visible: Bool[Array, "batch keys"], positions: Int[Array, "#batch length"]
) -> Int[Array, "#batch length"]:
    """The learned positions of the tokens that stand at `positions`: those, or only what is `visible` is counted, and
    what is not is in front of the first (RoBERTa)."""
    if config.position_count == "all":
        return positions + config.position_offset
    positions = jnp.broadcast_to(positions, (len(visible), positions.shape[1]))
    counted = jnp.where(visible, jnp.cumsum(visible, axis=1), 0)
    return jnp.take_along_axis(counted, positions, axis=1) + config.position_offset - 1


def embed(
    config: TransformerConfig,
    token_embedding: nnx.Embed,
    position_embedding: nnx.Embed | None,
    token_type_embedding: nnx.Embed | None,
    tokens: Int[Array, "batch length"],
    visible: Bool[Array, "batch keys"],
    positions: Int[Array, "batch length"] | None = None,
    token_types: Int[Array, "batch length"] | None = None,
) -> Float[Array, "batch length embed_dim"]:
    """The embeddings of the tokens, of their types if there are such, and of their `positions`: 0, 1 … if none are
    given; what is `visible` of all there is may be what they count. They are learned if there is an embedding."""
    length = tokens.shape[1]
    check_length(config, length)
    at = jnp.arange(length)[None] if positions is None else positions
    x = token_embedding.embedding[tokens]  # calling it would answer in the dtype it was created with
    if config.embedding_scale == "embed_dim":
        x = x * math.sqrt(config.embed_dim)
    if token_type_embedding is not None and token_types is not None:
        x = x + token_type_embedding.embedding[token_types]
    if position_embedding is not None:
        return x + position_embedding.embedding[position_ids(config, visible, at)]
    if config.positions == "sinusoidal":
        table = sinusoidal_positions(visible.shape[1], config.embed_dim, config.rope_theta, config.rope_layout)
        return x + jnp.asarray(table, x.dtype)[at]
    return x
