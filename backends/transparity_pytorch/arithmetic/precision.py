"""Sums and soft capping in at least float32, because lower precision would lose small terms."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def upcast(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """Return `x` in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def apply_softcap(x: Float[Tensor, "*batch"], cap: float) -> Float[Tensor, "*batch"]:
    """cap · tanh(x / cap) (Gemma 2): close to x for small |x|, and always between −cap and cap."""
    return ((upcast(x) / cap).tanh() * cap).to(x.dtype)
