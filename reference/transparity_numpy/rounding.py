"""Low precision: a tap that rounds what flows through it, so that it is held in fewer bits than it is computed in."""

from __future__ import annotations

from jaxtyping import Inexact
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.taps import Tap


def rounding(dtype: DTypeLike) -> Tap:
    """A tap that rounds every value to the nearest number of `dtype`; what computes on goes on in its own."""

    def rounded(name: str, value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
        return value.astype(dtype).astype(value.dtype)

    return rounded
