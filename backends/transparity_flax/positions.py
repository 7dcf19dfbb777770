"""Positions inside attention: rotary tables for queries and keys, and biases of scores by distance."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float, Float64, Int

from transparity.config import RopeLayout, TransformerConfig

RotaryTables = tuple[Float[Array, "#batch 1 length pairs"], Float[Array, "#batch 1 length pairs"]]
"""Cosine and sine of every angle by which queries and keys are rotated."""


def rotary_frequencies(config: TransformerConfig) -> Float64[np.ndarray, " pairs"]:
    """theta^(−2 i / features): the angle per position of each pair of features (Su et al. 2021, §3.2.2), scaled for
    sequences longer than in the original training (linear, or as in Llama 3.1)."""
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
    tables: RotaryTables,
    layout: RopeLayout,
) -> Float[Array, "batch heads length head_dim"]:
    """Rotate each pair (a, b) of features by its angle: (a cos − b sin, b cos + a sin); keep other features."""
    cosine, sine = tables
    half = cosine.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    interleaved, halves = (rotated[..., ::2], rotated[..., 1::2]), (rotated[..., :half], rotated[..., half:])
    a, b = interleaved if layout == "interleaved" else halves
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if layout == "interleaved":
        return jnp.concatenate([jnp.stack(both, axis=-1).reshape(rotated.shape), rest], axis=-1)
    return jnp.concatenate([*both, rest], axis=-1)


def relative_buckets(
    distances: Int[Array, "*batch"], buckets: int, max_distance: int, *, both: bool
) -> Int[Array, "*batch"]:
    """Bucket of each distance key − query (Raffel et al. 2020, §2.1).

    The first half of the buckets holds one distance each; the others hold ranges that grow by a constant factor up to
    `max_distance`. With `both`, the second half of all buckets is for later keys; without, later keys count as
    distance 0.
    """
    offset = buckets // 2 * (distances > 0) if both else 0
    buckets, distances = (buckets // 2, jnp.abs(distances)) if both else (buckets, jnp.maximum(-distances, 0))
    exact = buckets // 2
    shares = np.arange(1, buckets - exact) / (buckets - exact)
    # A range that begins at a whole number must not begin just above it because the power was rounded.
    begins = np.ceil(exact * (max_distance / exact) ** shares * (1 - 1e-12)).astype(int)
    return offset + jnp.where(distances < exact, distances, exact + jnp.searchsorted(begins, distances, side="right"))


def alibi_slopes(num_heads: int) -> Float64[np.ndarray, " heads"]:
    """2^(−8 i / heads) for the i-th head, counted from 1; for a number of heads that is not a power of two, the slopes
    of the power below and every other one of the power above (Press et al. 2022, §3, and their code)."""
    below = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * (num_heads - below) + 1, 2))
    return np.concatenate([slopes, between])


def distances(positions: Int[Array, "#batch queries"], keys: int) -> Int[Array, "#batch queries keys"]:
    """Key position − query position, for keys 0 … `keys` − 1."""
    return jnp.arange(keys) - positions[..., None]


def rotary_tables(
    config: TransformerConfig, positions: Int[Array, "#batch queries"], keys: int, dtype: jnp.dtype
) -> RotaryTables | None:
    """Cosine and sine of position · frequency; None without RoPE.

    JAX has float64 only where it is enabled. NumPy computes the angles of the positions 0 … `keys` − 1 in float64 while
    tracing, since they are constants.
    """
    if config.positions != "rotary":
        return None
    angles = np.arange(keys)[:, None] * rotary_frequencies(config)
    cosine, sine = (jnp.asarray(part, dtype)[positions][:, None] for part in (np.cos(angles), np.sin(angles)))
    return cosine, sine


def score_bias(
    config: TransformerConfig,
    relative_bias: nnx.Embed | None,
    positions: Int[Array, "#batch queries"],
    keys: int,
    dtype: jnp.dtype,
    *,
    both: bool,
) -> Float[Array, "#batch heads queries keys"] | None:
    """Bias by distance that is added to scores: learned per bucket (T5) or linear (ALiBi); None for other positions.

    Args:
        relative_bias: The table of the stack, for learned biases.
        positions: Positions of the queries.
        keys: Number of keys.
        dtype: Of the activations.
        both: Whether queries see later keys too.
    """
    if relative_bias is not None:
        limits = (config.relative_buckets, config.relative_max_distance)
        buckets = relative_buckets(distances(positions, keys), *limits, both=both)
        return jnp.moveaxis(relative_bias.embedding[buckets], -1, 1)
    if config.positions == "alibi":
        slopes = jnp.asarray(alibi_slopes(config.num_heads), dtype)
        return -slopes[:, None, None] * jnp.abs(distances(positions, keys)).astype(dtype)[:, None]
    return None
