"""Rounding of activations to a lower precision than the computation has."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from transparity.taps import Tap


def rounding(dtype: torch.dtype) -> Tap:
    """Return a tap that rounds every activation to the nearest number of `dtype` and keeps the activation's own
    dtype."""

    def rounded(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return value.to(dtype).to(value.dtype)

    return rounded
