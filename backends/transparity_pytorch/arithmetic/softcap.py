"""Soft capping of scores and logits."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from transparity_pytorch.arithmetic.precision import upcast


def apply_softcap(x: Float[Tensor, "*batch"], cap: float) -> Float[Tensor, "*batch"]:
    """cap · tanh(x / cap): close to x where |x| is small, and always within ± cap (Gemma 2)."""
    return ((upcast(x) / cap).tanh() * cap).to(x.dtype)
