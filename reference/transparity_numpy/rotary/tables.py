"""Rotary tables: the cosine and sine of every angle, with the scaling that the configuration names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity_numpy.rotary.linear import linear_frequencies
from transparity_numpy.rotary.llama3 import llama3_frequencies
from transparity_numpy.rotary.longrope import longrope_frequencies
from transparity_numpy.rotary.plain import plain_frequencies
from transparity_numpy.rotary.yarn import yarn_frequencies
from transparity_numpy.shapes import Positions, RotaryTables

SCALINGS: dict[str, Callable[..., Float64[Array, " pairs"]]] = {
    "none": plain_frequencies,
    "linear": linear_frequencies,
    "llama3": llama3_frequencies,
    "yarn": yarn_frequencies,
    "longrope": longrope_frequencies,
}


def rotary_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Float64[Array, " pairs"]:
    """Return the angle per position of each pair of features, scaled for long sequences.

    Some scalings depend on whether the sequence is longer than the original length (`beyond`).
    """
    scaling = SCALINGS[config.rotary_scaling]
    return scaling(config, beyond=beyond) if config.rotary_depends_on_length else scaling(config)


def rotary_tables(config: TransformerConfig, positions: Positions, dtype: DTypeLike) -> RotaryTables | None:
    """Return the cosine and sine of position · frequency, times the attention factor; None without rotary positions.

    The angles are computed in float64.
    """
    if config.positions != "rotary":
        return None
    beyond = bool(positions.max() >= config.rotary_original_length)
    angles = (positions[..., None] * rotary_frequencies(config, beyond=beyond))[:, None]
    factor = config.rotary_attention_factor
    return (np.cos(angles) * factor).astype(dtype), (np.sin(angles) * factor).astype(dtype)
