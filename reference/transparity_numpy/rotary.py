"""Rotary positions (Su et al. 2021): each pair of features is rotated by an angle that grows with the position.

Each scaling of the angles is a function in `scalings.py`, or in its own file, and a row of `SCALINGS`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

from transparity.config import RopeLayout, TransformerConfig
from transparity_numpy import scalings
from transparity_numpy.shapes import Frequencies, Heads, Positions, RotaryTables


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


SCALINGS: dict[str, Callable[..., Frequencies]] = {
    "none": scalings.plain_frequencies,
    "linear": scalings.linear_frequencies,
    "llama3": scalings.llama3_frequencies,
    "yarn": scalings.yarn_frequencies,
    "longrope": scalings.longrope_frequencies,
}


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Frequencies:
    """Return the scaled angle per position of each pair, for sequences up to the original length, or `beyond` it."""
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, beyond=beyond) if config.rotary_depends_on_length else scaling(config)


def rotary_tables(config: TransformerConfig, positions: Positions, dtype: DTypeLike) -> RotaryTables:
    """factor · cos(position · frequency) and factor · sin(position · frequency), where the angles are in float64."""
    beyond = bool(positions.max() >= config.rotary_original_length)
    angles = (positions[..., None] * rotary_frequencies(config, beyond=beyond))[:, None]
    factor = config.rotary_attention_factor
    return (np.cos(angles) * factor).astype(dtype), (np.sin(angles) * factor).astype(dtype)
