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


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Float64[np.ndarray, " pairs"]:
    """theta^(−2 i / features): the angle per position of each pair of features (Su et al. 2021, §3.2.2), scaled for
    sequences longer than in the original training; LongRoPE's also depend on whether this sequence is `beyond` it."""
    frequencies = config.rope_theta ** -(np.arange(0, config.rotated_dim, 2) / config.rotated_dim)
    if config.rotary_scaling == "none":
        return frequencies
    if config.rotary_scaling == "longrope":
        return frequencies / np.array(config.rotary_long_factors if beyond else config.rotary_short_factors)
    slowed = frequencies / config.rotary_factor
    if config.rotary_scaling == "linear":
        return slowed
    share = yarn_shares(config) if config.rotary_scaling == "yarn" else llama3_shares(config, frequencies)
    return (1 - share) * slowed + share * frequencies


def llama3_shares(
    config: TransformerConfig, frequencies: Float64[np.ndarray, " pairs"]
) -> Float64[np.ndarray, " pairs"]:
    """Share of the unscaled angle in each scaled one, by the turns that it makes in the original length (Llama 3.1)."""
    slow, fast = config.rotary_slow_turns, config.rotary_fast_turns
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    return np.clip((turns - slow) / (fast - slow), 0, 1)


def yarn_ends(config: TransformerConfig) -> tuple[float, float]:
    """Pairs of features between which YaRN goes from unscaled to scaled angles: those that make so many turns in the
    original length (Peng et al. 2024, §3.2; their code has whole pairs)."""
    original, width = config.rotary_original_length / (2 * math.pi), config.rotated_dim / 2
    fast, slow = config.rotary_fast_turns, config.rotary_slow_turns
    first, last = (width * math.log(original / turns, config.rope_theta) for turns in (fast, slow))
    if config.rotary_truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, config.rotated_dim - 1.0)
    return first, last if first != last else last + 0.001


def yarn_shares(config: TransformerConfig) -> Float64[np.ndarray, " pairs"]:
    """Share of the unscaled angle in each of YaRN's, which falls linearly between two pairs of features."""
    first, last = yarn_ends(config)
    return 1 - np.clip((np.arange(config.rotated_dim // 2) - first) / (last - first), 0, 1)


def rotate(
    x: Float[Array, "batch heads length head_dim"], tables: RotaryTables, layout: RopeLayout
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
    """Cosine and sine of position · frequency, times the attention factor; None without RoPE.

    JAX has float64 only where it is enabled. NumPy computes the angles of the positions 0 … `keys` − 1 in float64 while
    tracing, since they are constants.
    """
    if config.positions != "rotary":
        return None
    tables = _tables(config, keys, dtype)
    if config.rotary_scaling == "longrope":
        beyond, long = positions.max() >= config.rotary_original_length, _tables(config, keys, dtype, beyond=True)
        tables = (jnp.where(beyond, long[0], tables[0]), jnp.where(beyond, long[1], tables[1]))
    return tables[0][positions][:, None], tables[1][positions][:, None]


def _tables(
    config: TransformerConfig, keys: int, dtype: jnp.dtype, *, beyond: bool = False
) -> tuple[Float[Array, "keys pairs"], Float[Array, "keys pairs"]]:
    """The tables of the positions 0 … `keys` − 1."""
    angles, factor = (
        np.arange(keys)[:, None] * rotary_frequencies(config, beyond=beyond),
        config.rotary_attention_factor,
    )
    return jnp.asarray(np.cos(angles) * factor, dtype), jnp.asarray(np.sin(angles) * factor, dtype)


def query_temperature(
    config: TransformerConfig, positions: Int[Array, "#batch queries"], keys: int, dtype: jnp.dtype
) -> Float[Array, "#batch 1 queries 1"] | None:
    """1 + temperature · ln(1 + ⌊(position + first) / length⌋): the factor of each query, computed in float64
    by NumPy; None if it is 1 everywhere (Llama 4, Ministral 3)."""
    if not config.query_temperature:
        return None
    pieces = (np.arange(keys) + config.query_temperature_first) // config.query_temperature_length
    factors = jnp.asarray(1 + config.query_temperature * np.log1p(pieces), dtype)
    return factors[positions][:, None, :, None]


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
