"""Dropout in training, at the taps that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Bool, Float
from torch import Tensor

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Tensor, "*batch"]], rate: float) -> Tap:
    """Tap that multiplies each value with its mask and divides it by 1 − rate (Srivastava et al. 2014); values without
    a mask are unchanged."""

    def drop(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return (value / (1 - rate)).masked_fill(~masks[name], 0) if name in masks else value

    return drop
