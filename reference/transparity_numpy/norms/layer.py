"""Layer norm (Ba et al. 2016), and the norm of document 003."""

from __future__ import annotations

import numpy as np

from transparity_numpy.arithmetic.functional import cast_like
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the features, where the variance uses n, not n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    y = centered / np.sqrt(variance + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).sum(axis=-1, keepdims=True) / wide.dtype.type(x.shape[-1] - 1)
    y = centered / (np.sqrt(variance) + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)
