"""The RMS norm, and the layer norm that divides by s + eps, where s is the standard deviation with divisor n − 1."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.shapes import Vectors, Weight


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with divisor n − 1."""
    wide = upcast(x)
    deviation, mean = torch.std_mean(wide, dim=-1, correction=1, keepdim=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).to(x.dtype)


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    return F.rms_norm(x, weight.shape, weight, eps)
