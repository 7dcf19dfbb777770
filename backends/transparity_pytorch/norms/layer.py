"""Layer norm (Ba et al. 2016)."""

from __future__ import annotations

from torch.nn import functional as F

from transparity_pytorch.shapes import Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the features, where the variance uses n, not n − 1."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)
