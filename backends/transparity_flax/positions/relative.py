"""Relative positions (T5): a learned bias of the scores for each range of distances."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float, Int

from transparity.config import TransformerConfig
from transparity_flax.shapes import Positions


def distances(positions: Positions, keys: int) -> Int[Array, "#batch queries keys"]:
    """Return key position − query position, for the keys at 0 … `keys` − 1."""
    return jnp.arange(keys) - positions[..., None]


def relative_buckets(
    distances: Int[Array, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Array, "*batch"]:
    """Return the bucket of each distance, key position − query position (Raffel et al. 2020, §2.1).

    In each direction, the first half of the buckets hold one distance each. The others hold ranges that grow
    geometrically up to `max_distance`. With `both`, half of all buckets are for later keys. Without it, later keys
    count as distance 0.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, jnp.abs(distances)) if both else (buckets, jnp.maximum(-distances, 0))
    exact = buckets // 2
    shares = np.arange(1, buckets - exact) / (buckets - exact)
    # A range that starts at a whole number must not start just above it because the power was rounded.
    begins = np.ceil(exact * (max_distance / exact) ** shares * (1 - 1e-12)).astype(int)
    return offset + jnp.where(distances < exact, distances, exact + jnp.searchsorted(begins, distances, side="right"))


def relative_bias(
    config: TransformerConfig, table: nnx.Embed, positions: Positions, keys: int, *, both: bool
) -> Float[Array, "#batch heads queries keys"]:
    """table[bucket(key − query)] for each head; with `both`, queries also see later keys."""
    limits = (config.relative_buckets, config.relative_max_distance)
    buckets = relative_buckets(distances(positions, keys), *limits, both=both)
    return jnp.moveaxis(table.embedding[buckets], -1, 1)
