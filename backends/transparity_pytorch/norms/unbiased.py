"""The layer norm that divides by s + eps, where the standard deviation s uses n − 1."""

from __future__ import annotations

import torch

from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.shapes import Vectors, Weight


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with n − 1."""
    wide = upcast(x)
    deviation, mean = torch.std_mean(wide, dim=-1, correction=1, keepdim=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).to(x.dtype)
