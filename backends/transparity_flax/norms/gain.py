"""The gain of a norm, the factor of the normalized values."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity_flax.shapes import Weight


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nnx.Param[Array]:
    """Return the initial weight of a norm, with which its gain is 1; Flax calls the weight `scale`."""
    return nnx.Param(jnp.full(features, float(config.norm_gain == "weight")))
