"""Half precision, summed in float32: what is added up in fewer bits is lost one by one. Most of PyTorch's kernels widen
it inside."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def upcast(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """`x` in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
