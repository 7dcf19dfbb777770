"""RMS norm (Zhang and Sennrich 2019)."""

from __future__ import annotations

import numpy as np

from transparity_numpy.arithmetic.functional import cast_like
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import Vectors, Weight


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    size = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + wide.dtype.type(eps))
    return cast_like(wide / size * weight, x, weight)
