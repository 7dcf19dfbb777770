"""Sums of half-precision values in float32. Most of PyTorch's kernels do this internally."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def upcast(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return `x` in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
