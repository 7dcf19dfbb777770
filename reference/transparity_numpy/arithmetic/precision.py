"""Sums and soft capping in at least float32, because lower precision would lose small terms."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array


def upcast(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """Return `x` in at least float32."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)


def apply_softcap(x: Inexact[Array, "*batch"], cap: float) -> Inexact[Array, "*batch"]:
    """cap · tanh(x / cap) (Gemma 2): close to x for small |x|, and always between −cap and cap."""
    return (np.tanh(upcast(x) / cap) * cap).astype(x.dtype, copy=False)
