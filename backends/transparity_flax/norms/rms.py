"""RMS norm (Zhang and Sennrich 2019)."""

from __future__ import annotations

import jax.numpy as jnp

from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Vectors, Weight


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    return (wide / jnp.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps) * weight).astype(x.dtype)
