"""Dropout: in training a share of what flows is dropped, at the taps that the configuration names."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Bool, Float
from torch import Tensor

from transparity.taps import Tap


def dropping(masks: Mapping[str, Bool[Tensor, "*batch"]], rate: float) -> Tap:
    """A tap that keeps what its mask shows, divided by 1 − rate, and drops the rest (Srivastava et al. 2014); what has
    no mask flows on as it is."""

    def drop(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return (value / (1 - rate)).masked_fill(~masks[name], 0) if name in masks else value

    return drop
