"""The linear scaling of rotary angles: every angle is divided by the same factor."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity_flax.rotary.plain import plain_frequencies
from transparity_flax.shapes import Frequencies


def linear_frequencies(config: TransformerConfig) -> Frequencies:
    """frequency / factor."""
    return plain_frequencies(config) / config.rotary_factor
