"""The RMS norm, and the layer norm that divides by s + eps, where s is the standard deviation with divisor n − 1."""

from __future__ import annotations

import numpy as np

from transparity_numpy.arithmetic.functional import cast_like
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import Vectors, Weight


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with divisor n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).sum(axis=-1, keepdims=True) / wide.dtype.type(x.shape[-1] - 1)
    y = centered / (np.sqrt(variance) + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    size = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + wide.dtype.type(eps))
    return cast_like(wide / size * weight, x, weight)
