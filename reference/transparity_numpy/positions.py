"""Positions inside attention: queries and keys that are turned, and what distances add to scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Inexact, Int
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import RopeLayout, TransformerConfig


class Places(NamedTuple):
    """What self-attention knows of positions, beside what was added to the embeddings."""

    rotation: tuple[Float[Array, "#batch 1 length pairs"], Float[Array, "#batch 1 length pairs"]] | None = None
    """The cosine and the sine of every angle that queries and keys are turned by."""
    bias: Inexact[Array, "#batch heads queries keys"] | None = None
    """What is added to scores."""


NOWHERE = Places()
"""Attention that knows of no positions: every cross-attention."""


def rotary_frequencies(config: TransformerConfig) -> Float64[Array, " pairs"]:
    """base^(−2 i / features): by how much a step turns each pair of features (Su et al. 2021, §3.2.2), scaled for
    longer texts than the model was first trained on (Llama 3.1)."""
    frequencies = config.rope_theta ** -(np.arange(0, config.rotated_dim, 2) / config.rotated_dim)
    if config.rotary_scaling == "none":
        return frequencies
    slowed = frequencies / config.rotary_factor
    if config.rotary_scaling == "linear":
        return slowed
    slow, fast = config.rotary_low_frequency, config.rotary_high_frequency
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    share = np.clip((turns - slow) / (fast - slow), 0, 1)
    return (1 - share) * slowed + share * frequencies


def rotate(
    x: Inexact[Array, "batch heads length head_dim"],
    rotation: tuple[Float[Array, "#batch 1 length pairs"], Float[Array, "#batch 1 length pairs"]],
    pairs: RopeLayout,
) -> Inexact[Array, "batch heads length head_dim"]:
    """Each pair of features turned by its angle: (a cos − b sin, b cos + a sin). Features behind the pairs stay."""
    cosine, sine = rotation
    half = cosine.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if pairs == "interleaved" else (turned[..., :half], turned[..., half:])
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if pairs == "interleaved":
        return np.concatenate([np.stack(both, axis=-1).reshape(turned.shape), rest], axis=-1)
    return np.concatenate([*both, rest], axis=-1)


def relative_buckets(
    distances: Int[Array, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Array, "*batch"]:
    """The bucket of each distance, key − query: near ones have their own, farther ones share, ever more of them (Raffel
    et al. 2020, §2.1): the first of the shared ones begins at the distance buckets/2, the others at distances that grow
    by one factor, up to `max_distance`. With `both` the second half of the buckets is for keys that come later; else
    those are as near as the query itself."""
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, np.abs(distances)) if both else (buckets, np.maximum(-distances, 0))
    exact = buckets // 2
    shares = np.arange(1, buckets - exact) / (buckets - exact)
    # What begins at a whole number has not begun before it, whatever the power was rounded to.
    begins = exact * (max_distance / exact) ** shares * (1 - 1e-12)
    return offset + np.where(distances < exact, distances, exact + np.searchsorted(begins, distances, side="right"))


def alibi_slopes(num_heads: int) -> Float64[Array, " heads"]:
    """2^(−8 i / heads) for the i-th head, counted from 1; where heads are no power of two, those of the power below,
    and every other one of the power above (Press et al. 2022, §3, and their code)."""
    below = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * (num_heads - below) + 1, 2))
    return np.concatenate([slopes, between])


def distances(positions: Int[Array, "#batch queries"], keys: int) -> Int[Array, "#batch queries keys"]:
    """How far each of so many keys stands behind the queries at `positions`: key − query."""
    return np.arange(keys) - positions[..., None]


def window_mask(
    positions: Int[Array, "#batch queries"], keys: int, window: int
) -> Bool[Array, "#batch 1 #queries keys"]:
    """Hides what is `window` positions away or farther (Beltagy et al. 2020, §3.1)."""
    return (np.abs(distances(positions, keys)) < window)[:, None]


def places(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    positions: Int[Array, "#batch queries"],
    keys: int,
    dtype: DTypeLike,
    *,
    both: bool,
) -> Places:
    """What self-attention knows of queries at `positions` and of so many `keys`; with `both` it sees what comes later,
    too. `parameters` are a stack's."""
    if config.positions == "rotary":
        angles = (positions[..., None] * rotary_frequencies(config))[:, None]
        return Places(rotation=(np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)))
    if config.positions == "relative":
        table = parameters["relative_bias"]["weight"]
        limits = (config.relative_buckets, config.relative_max_distance)
        return Places(bias=np.moveaxis(table[relative_buckets(distances(positions, keys), *limits, both=both)], -1, 1))
    if config.positions == "alibi":
        slopes = alibi_slopes(config.num_heads).astype(dtype)
        return Places(bias=-slopes[:, None, None] * np.abs(distances(positions, keys)).astype(dtype)[:, None])
    return NOWHERE
