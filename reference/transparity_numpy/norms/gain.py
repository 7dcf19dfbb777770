"""The gain of a norm, the factor of the normalized values."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity_numpy.shapes import Weight


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight
