"""LongRoPE (Ding et al. 2024): each angle is divided by its own factor, which depends on whether the sequence is
long."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.rotary.plain import plain_frequencies
from transparity_numpy.shapes import Frequencies


def longrope_frequencies(config: TransformerConfig, *, beyond: bool = False) -> Frequencies:
    """frequency / factor, with the long factors if the sequence is longer than the original length (`beyond`)."""
    return plain_frequencies(config) / np.array(config.rotary_long_factors if beyond else config.rotary_short_factors)
