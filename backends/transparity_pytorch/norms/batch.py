"""Batch norm, with the mean and variance of each feature over the batch and the positions."""

from __future__ import annotations

from typing import Any

import torch

from transparity.taps import Tap
from transparity_pytorch.arithmetic.precision import upcast
from transparity_pytorch.shapes import Vectors, Weight


def batch_norm(x: Vectors, weight: Weight, bias: Weight, mean: Weight, variance: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias, with the given mean and variance."""
    return ((upcast(x) - mean) / torch.sqrt(upcast(variance) + eps) * weight + bias).to(x.dtype)


def batch_statistics(x: Vectors) -> tuple[Weight, Weight]:
    """Return the mean and variance (with divisor n, not n − 1) of each feature over the batch and the positions."""
    variance, mean = torch.var_mean(x, dim=tuple(range(x.ndim - 1)), correction=0)
    return mean, variance


def running_average(old: Weight, new: Weight, momentum: float) -> Weight:
    """(1 − momentum) · old + momentum · new.

    Variances divide by n (document 001); `torch.nn.BatchNorm1d` divides by n − 1.
    """
    return torch.lerp(old, new, momentum)


def statistics(norm: Any, x: Vectors, tap: Tap) -> tuple[Weight, Weight]:
    """Return the running mean and variance or, in training, the mean and variance of the batch.

    In training, also pass the new running statistics to `tap`.
    """
    if not norm.training:
        return norm.running_mean, norm.running_var
    mean, variance = batch_statistics(x)
    with torch.no_grad():
        norm.running_mean.copy_(running_average(norm.running_mean, mean, norm.config.norm_momentum))
        norm.running_var.copy_(running_average(norm.running_var, variance, norm.config.norm_momentum))
    tap("running_mean", norm.running_mean)
    tap("running_var", norm.running_var)
    return mean, variance
