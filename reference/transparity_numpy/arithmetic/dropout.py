"""Dropout in training, at the taps that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from jaxtyping import Bool, Inexact
from numpy import ndarray as Array

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Array, "*batch"]], rate: float) -> Tap:
    """Tap that multiplies each value by its mask and divides it by 1 − rate (Srivastava et al. 2014); values without
    a mask are unchanged."""

    def drop(name: str, value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
        if name not in masks:
            return value
        return np.where(masks[name], value / value.real.dtype.type(1 - rate), value.dtype.type(0))

    return drop
