"""Rotary positions (Su et al. 2021): each pair of features is rotated by an angle that grows with the position.

Each scaling of the angles is a function and a row of `SCALINGS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float64
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import RopeLayout, TransformerConfig
from transparity_numpy.shapes import Heads, Positions, RotaryTables


def plain_frequencies(config: TransformerConfig) -> Float64[Array, " pairs"]:
    """theta^(−2 i / features), the angle per position of pair i of the features (Su et al. 2021, §3.2.2)."""
    return config.rope_theta ** -(np.arange(0, config.rotated_dim, 2) / config.rotated_dim)


def rotate(x: Heads, tables: RotaryTables, layout: RopeLayout) -> Heads:
    """Rotate pairs (a, b) of features: (a cos − b sin, b cos + a sin); the other features are unchanged."""
    cosine, sine = tables
    half = cosine.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    interleaved, halves = (rotated[..., ::2], rotated[..., 1::2]), (rotated[..., :half], rotated[..., half:])
    a, b = interleaved if layout == "interleaved" else halves
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if layout == "interleaved":
        return np.concatenate([np.stack(both, axis=-1).reshape(rotated.shape), rest], axis=-1)
    return np.concatenate([*both, rest], axis=-1)


def linear_frequencies(config: TransformerConfig) -> Float64[Array, " pairs"]:
    """frequency / factor."""
    return plain_frequencies(config) / config.rotary_factor


def llama3_frequencies(config: TransformerConfig) -> Float64[Array, " pairs"]:
    """(1 − share) · frequency / factor + share · frequency.

    Within the original length, angles with at most `rotary_slow_turns` turns have the share 0, and angles with at least
    `rotary_fast_turns` have the share 1. The share rises linearly in between.
    """
    frequencies = plain_frequencies(config)
    slow, fast = config.rotary_slow_turns, config.rotary_fast_turns
    turns = config.rotary_original_length * frequencies / (2 * math.pi)
    share = np.clip((turns - slow) / (fast - slow), 0, 1)
    return (1 - share) * (frequencies / config.rotary_factor) + share * frequencies


def yarn_ends(config: TransformerConfig) -> tuple[float, float]:
    """Return the first and last pair of features between unscaled and scaled angles (Peng et al. 2024, §3.2).

    Over `rotary_original_length` positions, the first pair makes `rotary_fast_turns` full turns, and the last pair
    makes `rotary_slow_turns`. The authors' code rounds to whole pairs.
    """
    original, width = config.rotary_original_length / (2 * math.pi), config.rotated_dim / 2
    fast, slow = config.rotary_fast_turns, config.rotary_slow_turns
    first, last = (width * math.log(original / turns, config.rope_theta) for turns in (fast, slow))
    if config.rotary_truncate:
        first, last = float(math.floor(first)), float(math.ceil(last))
    first, last = max(first, 0.0), min(last, config.rotated_dim - 1.0)
    return first, last if first != last else last + 0.001


def yarn_frequencies(config: TransformerConfig) -> Float64[Array, " pairs"]:
    """(1 − share) · frequency / factor + share · frequency, where the share falls from 1 to 0 between `yarn_ends`."""
    frequencies = plain_frequencies(config)
    first, last = yarn_ends(config)
    share = 1 - np.clip((np.arange(config.rotated_dim // 2) - first) / (last - first), 0, 1)
    return (1 - share) * (frequencies / config.rotary_factor) + share * frequencies


def longrope_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Float64[Array, " pairs"]:
    """frequency / factor, with the long factors if the sequence is longer than the original length (`beyond`)."""
    return plain_frequencies(config) / np.array(config.rotary_long_factors if beyond else config.rotary_short_factors)


SCALINGS: dict[str, Callable[..., Float64[Array, " pairs"]]] = {
    "none": plain_frequencies,
    "linear": linear_frequencies,
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
    "longrope": longrope_frequencies,
}


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Float64[Array, " pairs"]:
    """Return the scaled angle per position of each pair, for sequences up to or `beyond` the original length."""
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, beyond=beyond) if config.rotary_depends_on_length else scaling(config)


def rotary_tables(config: TransformerConfig, positions: Positions, dtype: DTypeLike) -> RotaryTables:
    """Return the cosine and sine of position · frequency, computed in float64, times the attention factor."""
    beyond = bool(positions.max() >= config.rotary_original_length)
    angles = (positions[..., None] * rotary_frequencies(config, beyond=beyond))[:, None]
    factor = config.rotary_attention_factor
    return (np.cos(angles) * factor).astype(dtype), (np.sin(angles) * factor).astype(dtype)
