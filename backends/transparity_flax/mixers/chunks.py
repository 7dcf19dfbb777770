"""Chunks for recurrences: all positions of a chunk are computed at once (Yang et al. 2025, §3.3; Dao and Gu 2024,
§6)."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

CHUNK = 64
"""Tokens per chunk; the state is computed once per chunk."""


def in_chunks(x: Float[Array, "batch heads length *features"]) -> Float[Array, "chunks batch heads chunk *features"]:
    """Split the positions into chunks of `CHUNK`; the last chunk is padded with zeros, which do not affect the
    state."""
    size = min(CHUNK, x.shape[2])
    filled = jnp.pad(x, [(0, -x.shape[2] % size) if axis == 2 else (0, 0) for axis in range(x.ndim)])
    return jnp.moveaxis(filled.reshape(*x.shape[:2], -1, size, *x.shape[3:]), 2, 0)


def in_a_row(
    x: Float[Array, "chunks batch heads chunk features"], length: int
) -> Float[Array, "batch heads length features"]:
    """Join chunks to a sequence; this is the inverse of `in_chunks`."""
    return jnp.moveaxis(x, 0, 2).reshape(*x.shape[1:3], -1, x.shape[-1])[:, :, :length]


def chunk_decays(
    log_decay: Float[Array, "batch heads length"],
) -> tuple[Float[Array, "batch heads length length"], Float[Array, "batch heads length 1"]]:
    """Return the share of the state that remains from each position of a chunk to each later one, and from the chunk's
    start."""
    # The sums start at each position, because differences of sums from the beginning would lose digits.
    onward = jnp.tril(jnp.broadcast_to(log_decay[..., None], (*log_decay.shape, log_decay.shape[-1])), -1).cumsum(-2)
    return jnp.tril(jnp.exp(onward)), jnp.exp(log_decay.cumsum(-1))[..., None]
