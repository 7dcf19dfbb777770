"""Rounding of activations to a lower precision than the computation has."""

from __future__ import annotations

from jaxtyping import Inexact
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.taps import Tap


def rounding(dtype: DTypeLike) -> Tap:
    """Return a tap that rounds every activation to the nearest number of `dtype` and keeps the activation's own
    dtype."""

    def rounded(name: str, value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
        return value.astype(dtype).astype(value.dtype)

    return rounded
