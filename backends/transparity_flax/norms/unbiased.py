"""The layer norm that divides by s + eps, where the standard deviation s uses n − 1."""

from __future__ import annotations

from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Vectors, Weight


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with n − 1."""
    wide = upcast(x)
    mean, deviation = wide.mean(axis=-1, keepdims=True), wide.std(axis=-1, ddof=1, keepdims=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).astype(x.dtype)
