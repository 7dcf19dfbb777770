"""Half precision, summed in float32: what is added up in fewer bits is lost one by one."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array


def upcast(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """`x` in at least float32."""
    return x.astype(np.promote_types(x.dtype, np.float32), copy=False)
