"""Low precision: a tap that rounds activations to fewer bits than the computation uses."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from transparity.taps import Tap


def rounding(dtype: torch.dtype) -> Tap:
    """Tap that rounds every value to the nearest number of `dtype` and returns it in its own dtype."""

    def rounded(name: str, value: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
        return value.to(dtype).to(value.dtype)

    return rounded
