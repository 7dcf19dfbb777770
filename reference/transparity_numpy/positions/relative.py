"""Relative positions (T5): a learned bias of the scores for each range of distances."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Inexact, Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.shapes import Positions


def distances(positions: Positions, keys: int) -> Int[Array, "#batch queries keys"]:
    """Return key position − query position, for the keys at 0 … `keys` − 1."""
    return np.arange(keys) - positions[..., None]


def relative_buckets(
    distances: Int[Array, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Array, "*batch"]:
    """Return the bucket of each distance, key position − query position (Raffel et al. 2020, §2.1).

    In each direction, the first half of the buckets hold one distance each. The others hold ranges that grow
    geometrically up to `max_distance`. With `both`, half of all buckets are for later keys. Without it, later keys
    count as distance 0.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, np.abs(distances)) if both else (buckets, np.maximum(-distances, 0))
    exact = buckets // 2
    shares = np.arange(1, buckets - exact) / (buckets - exact)
    # A range that starts at a whole number must not start just above it because the power was rounded.
    begins = exact * (max_distance / exact) ** shares * (1 - 1e-12)
    return offset + np.where(distances < exact, distances, exact + np.searchsorted(begins, distances, side="right"))


def relative_bias(
    config: TransformerConfig, table: Mapping[str, Array], positions: Positions, keys: int, *, both: bool
) -> Inexact[Array, "#batch heads queries keys"]:
    """table[bucket(key − query)] for each head; with `both`, queries also see later keys."""
    limits = (config.relative_buckets, config.relative_max_distance)
    buckets = relative_buckets(distances(positions, keys), *limits, both=both)
    return np.moveaxis(table["weight"][buckets], -1, 1)
