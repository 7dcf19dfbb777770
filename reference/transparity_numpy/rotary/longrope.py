"""LongRoPE (Ding et al. 2024): each rotary angle has its own factor, and another factor in long sequences."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.rotary.plain import plain_frequencies


def longrope_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Float64[Array, " pairs"]:
    """frequency / factor, with the long factors if the sequence is longer than the original length (`beyond`)."""
    return plain_frequencies(config) / np.array(config.rotary_long_factors if beyond else config.rotary_short_factors)
