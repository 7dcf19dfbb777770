"""Low precision: a tap that rounds activations to fewer bits than the computation uses."""

from __future__ import annotations

from jaxtyping import Inexact
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.taps import Tap


def rounding(dtype: DTypeLike) -> Tap:
    """Tap that rounds every value to the nearest number of `dtype` and returns it in its own dtype."""

    def rounded(name: str, value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
        return value.astype(dtype).astype(value.dtype)

    return rounded
