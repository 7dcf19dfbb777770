"""The RMS norm, and the layer norm that divides by s + eps, where s is the standard deviation with divisor n − 1."""

from __future__ import annotations

import jax.numpy as jnp

from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Vectors, Weight


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with divisor n − 1."""
    wide = upcast(x)
    mean, deviation = wide.mean(axis=-1, keepdims=True), wide.std(axis=-1, ddof=1, keepdims=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).astype(x.dtype)


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    return (wide / jnp.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps) * weight).astype(x.dtype)
