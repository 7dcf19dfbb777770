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
    """Key position − query position, for keys 0 … `keys` − 1."""
    return jnp.arange(keys) - positions[..., None]


def relative_buckets(
    distances: Int[Array, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Array, "*batch"]:
    """Bucket of each distance key − query (Raffel et al. 2020, §2.1).

    Buckets in the first half hold one distance each; the others hold ranges that grow geometrically up to
    `max_distance`. With `both`, the second half of all buckets is for later keys; without, later keys count as distance
    0.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, jnp.abs(distances)) if both else (buckets, jnp.maximum(-distances, 0))
    exact = buckets // 2
    shares = np.arange(1, buckets - exact) / (buckets - exact)
    # A range that begins at a whole number must not begin just above it because the power was rounded.
    begins = np.ceil(exact * (max_distance / exact) ** shares * (1 - 1e-12)).astype(int)
    return offset + jnp.where(distances < exact, distances, exact + jnp.searchsorted(begins, distances, side="right"))


def relative_bias(
    config: TransformerConfig, table: nnx.Embed, positions: Positions, keys: int, *, both: bool
) -> Float[Array, "#batch heads queries keys"]:
    """table[bucket(key − query)] of each head; with `both`, queries see later keys too."""
    limits = (config.relative_buckets, config.relative_max_distance)
    buckets = relative_buckets(distances(positions, keys), *limits, both=both)
    return jnp.moveaxis(table.embedding[buckets], -1, 1)
