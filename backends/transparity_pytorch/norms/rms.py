"""RMS norm (Zhang and Sennrich 2019)."""

from __future__ import annotations

from torch.nn import functional as F

from transparity_pytorch.shapes import Vectors, Weight


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    return F.rms_norm(x, weight.shape, weight, eps)
