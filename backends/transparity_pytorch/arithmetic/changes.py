"""Tap functions that change activations: dropout in training, and rounding to a lower precision."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Tensor, "*batch"]], rate: float) -> Tap:
    """Return a tap function for dropout: x · mask / (1 − rate) for activations in `masks` (Srivastava et al. 2014)."""

    def drop(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return (value / (1 - rate)).masked_fill(~masks[name], 0) if name in masks else value

    return drop


def dropped(at: tuple[str, ...], dropout: nn.Dropout) -> Tap:
    """Return a tap function that applies `dropout` to the activations whose names end with an entry of `at`."""

    def drop(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return dropout(value) if name.endswith(at) else value

    return drop


def rounding(dtype: torch.dtype) -> Tap:
    """Return a tap function that rounds every activation to the precision of `dtype`; the array's dtype stays the
    same."""

    def rounded(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return value.to(dtype).to(value.dtype)

    return rounded
