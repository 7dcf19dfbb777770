"""Batch norm, with the mean and variance of each feature over the batch and the positions."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity_numpy.arithmetic.functional import cast_like
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import Parameters, Vectors, Weight


def batch_norm(x: Vectors, weight: Weight, bias: Weight, mean: Weight, variance: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias, with the given mean and variance."""
    wide, variance = upcast(x), upcast(variance)
    y = (wide - mean) / np.sqrt(variance + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)


def batch_statistics(x: Vectors) -> tuple[Weight, Weight]:
    """Return the mean and variance (with divisor n, not n − 1) of each feature over the batch and the positions."""
    wide, axes = upcast(x), tuple(range(x.ndim - 1))
    mean = wide.mean(axis=axes)
    centered = wide - mean
    return mean.astype(x.dtype, copy=False), (centered * centered).mean(axis=axes).astype(x.dtype, copy=False)


def running_average(old: Weight, new: Weight, momentum: float) -> Weight:
    """(1 − momentum) · old + momentum · new.

    Variances divide by n (document 001); `torch.nn.BatchNorm1d` divides by n − 1.
    """
    share = old.dtype.type(momentum)
    return (1 - share) * old + share * new


def statistics(
    config: TransformerConfig, parameters: Parameters, x: Vectors, tap: Tap, *, training: bool = False
) -> tuple[Weight, Weight]:
    """Return the running mean and variance or, in training, the mean and variance of the batch.

    In training, also pass the new running statistics to `tap`.
    """
    old_mean, old_variance = parameters["running_mean"], parameters["running_var"]
    if not training:
        return old_mean, old_variance
    mean, variance = batch_statistics(x)
    tap("running_mean", running_average(old_mean, mean, config.norm_momentum))
    tap("running_var", running_average(old_variance, variance, config.norm_momentum))
    return mean, variance
