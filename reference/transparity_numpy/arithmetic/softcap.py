"""Soft capping of scores and logits."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity_numpy.arithmetic.precision import upcast


def apply_softcap(x: Inexact[Array, "*batch"], cap: float) -> Inexact[Array, "*batch"]:
    """cap · tanh(x / cap): close to x where |x| is small, and always within ± cap (Gemma 2)."""
    return (np.tanh(upcast(x) / cap) * cap).astype(x.dtype, copy=False)
