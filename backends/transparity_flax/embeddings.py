"""Tokens and positions as vectors."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float, Float64, Int

from transparity.config import TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(length: int, embed_dim: int) -> Float64[np.ndarray, "length embed_dim"]:
    """sin(position / 10000^(i / embed_dim)) at even features i, the cosine of the same angle beside it (document 003;
    Vaswani et al. 2017, §3.5). Computed in float64, whatever the model's dtype: float32 angles lose digits.
    JAX has float64 only where it is switched on; the table is a constant, so NumPy computes it while tracing."""
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(0, embed_dim, 2) / embed_dim)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, embed_dim)


def embed(
    config: TransformerConfig,
    token_embedding: nnx.Embed,
    position_embedding: nnx.Embed | None,
    tokens: Int[Array, "batch length"],
    positions: Int[Array, "batch length"] | None = None,
) -> Float[Array, "batch length embed_dim"]:
    """The embeddings of the tokens plus those of their `positions`: 0, 1 … if none are given. They are learned if there
    is an embedding of them."""
    length = tokens.shape[1]
    check_length(config, length)
    at, reach = (slice(length), length) if positions is None else (positions, config.max_length)
    x = token_embedding.embedding[tokens]  # calling it would answer in the dtype it was created with
    if config.embedding_scale == "embed_dim":
        x = x * math.sqrt(config.embed_dim)
    if position_embedding is not None:
        return x + position_embedding.embedding[at]
    return x + jnp.asarray(sinusoidal_positions(reach, config.embed_dim), x.dtype)[at]
