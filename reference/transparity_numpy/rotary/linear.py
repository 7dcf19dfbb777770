"""Linear scaling of rotary angles (Chen et al. 2023): positions are divided by a factor."""

from __future__ import annotations

from jaxtyping import Float64
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.rotary.plain import plain_frequencies


def linear_frequencies(config: TransformerConfig) -> Float64[Array, " pairs"]:
    """frequency / factor."""
    return plain_frequencies(config) / config.rotary_factor
