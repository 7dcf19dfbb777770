"""Tap functions that change activations: dropout in training, and rounding to a lower precision."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Inexact
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Array, "*batch"]], rate: float) -> Tap:
    """Return a tap function for dropout: x · mask / (1 − rate) for activations in `masks` (Srivastava et al. 2014)."""

    def drop(name: str, value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
        if name not in masks:
            return value
        return np.where(masks[name], value / value.real.dtype.type(1 - rate), value.dtype.type(0))

    return drop


def rounding(dtype: DTypeLike) -> Tap:
    """Return a tap function that rounds every activation to the precision of `dtype`; the array's dtype stays the
    same."""

    def rounded(name: str, value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
        return value.astype(dtype).astype(value.dtype)

    return rounded
