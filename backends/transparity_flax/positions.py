"""Positions inside attention: queries and keys that are turned, and what distances add to scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Float64, Int

from transparity.config import RopeLayout, TransformerConfig


class Places(NamedTuple):
    """What self-attention knows of positions, beside what was added to the embeddings."""

    rotation: tuple[Float[Array, "#batch 1 length pairs"], Float[Array, "#batch 1 length pairs"]] | None = None
    """The cosine and the sine of every angle that queries and keys are turned by."""
    bias: Float[Array, "#batch heads queries keys"] | None = None
    """What is added to scores."""


NOWHERE = Places()
"""Attention that knows of no positions: every cross-attention."""


def rotary_frequencies(config: TransformerConfig) -> Float64[np.ndarray, " pairs"]:
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
    x: Float[Array, "batch heads length head_dim"],
    rotation: tuple[Float[Array, "#batch 1 length pairs"], Float[Array, "#batch 1 length pairs"]],
    pairs: RopeLayout,
) -> Float[Array, "batch heads length head_dim"]:
    """Each pair of features turned by its angle: (a cos − b sin, b cos + a sin). Features behind the pairs stay."""
    cosine, sine = rotation
    half = cosine.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if pairs == "interleaved" else (turned[..., :half], turned[..., half:])
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if pairs == "interleaved":
        return jnp.concatenate([jnp.stack(both, axis=-1).reshape(turned.shape), rest], axis=-1)
    return jnp.concatenate([*both, rest], axis=-1)


def relative_buckets(
    distances: Int[Array, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Array, "*batch"]:
    """The bucket of each distance, key − query: near ones have their own, farther ones share, ever more of them (Raffel
    et al. 2020, §2.1): the first of the shared ones begins at the distance buckets/2, the others at distances that grow
    by one factor, up to `max_distance`. With `both` the second half of the buckets is for keys that come later; else
    those are as near as the query itself."""
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, jnp.abs(distances)) if both else (buckets, jnp.maximum(-distances, 0))
    exact = buckets // 2
    shares = np.arange(1, buckets - exact) / (buckets - exact)
    # What begins at a whole number has not begun before it, whatever the power was rounded to.
    begins = np.ceil(exact * (max_distance / exact) ** shares * (1 - 1e-12)).astype(int)
    return offset + jnp.where(distances < exact, distances, exact + jnp.searchsorted(begins, distances, side="right"))


def alibi_slopes(num_heads: int) -> Float64[np.ndarray, " heads"]:
    """2^(−8 i / heads) for the i-th head, counted from 1; where heads are no power of two, those of the power below,
    and every other one of the power above (Press et al. 2022, §3, and their code)."""
    below = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * (num_heads - below) + 1, 2))
    return np.concatenate([slopes, between])


def distances(positions: Int[Array, "#batch queries"], keys: int) -> Int[Array, "#batch queries keys"]:
    """How far each of so many keys stands behind the queries at `positions`: key − query."""
    return jnp.arange(keys) - positions[..., None]


def window_mask(
    positions: Int[Array, "#batch queries"], keys: int, window: int
) -> Bool[Array, "#batch 1 #queries keys"]:
    """Hides what is `window` positions away or farther (Beltagy et al. 2020, §3.1)."""
    return (jnp.abs(distances(positions, keys)) < window)[:, None]


def places(
    config: TransformerConfig,
    relative_bias: nnx.Embed | None,
    positions: Int[Array, "#batch queries"],
    keys: int,
    dtype: jnp.dtype,
    *,
    both: bool,
) -> Places:
    """What self-attention knows of queries at `positions` and of so many `keys`; with `both` it sees what comes later,
    too. `relative_bias` is a stack's.

    JAX has float64 only where it is switched on; the angles are constants, so NumPy computes them while tracing.
    """
    if config.positions == "rotary":
        angles = np.arange(keys)[:, None] * rotary_frequencies(config)
        cosine, sine = (jnp.asarray(part, dtype)[positions][:, None] for part in (np.cos(angles), np.sin(angles)))
        return Places(rotation=(cosine, sine))
    if relative_bias is not None:
        limits = (config.relative_buckets, config.relative_max_distance)
        return Places(
            bias=jnp.moveaxis(
                relative_bias.embedding[relative_buckets(distances(positions, keys), *limits, both=both)], -1, 1
            )
        )
    if config.positions == "alibi":
        slopes = jnp.asarray(alibi_slopes(config.num_heads), dtype)
        return Places(bias=-slopes[:, None, None] * jnp.abs(distances(positions, keys)).astype(dtype)[:, None])
    return NOWHERE
