"""Low precision: a tap that rounds what flows through it, so that it is held in fewer bits than it is computed in."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from transparity.taps import Tap


def rounding(dtype: torch.dtype) -> Tap:
    """A tap that rounds every value to the nearest number of `dtype`; what computes on goes on in its own."""

    def rounded(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return value.to(dtype).to(value.dtype)

    return rounded
