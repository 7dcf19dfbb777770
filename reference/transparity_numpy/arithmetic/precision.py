"""Sums of half-precision values in float32, because small terms would be lost in lower precision."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array


def upcast(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """Return `x` in at least float32."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)
