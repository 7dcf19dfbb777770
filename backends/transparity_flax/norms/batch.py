"""Batch norm, with the mean and variance of each feature over the batch and the positions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from transparity.taps import Tap
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Vectors, Weight


def batch_norm(x: Vectors, weight: Weight, bias: Weight, mean: Weight, variance: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias, with the given mean and variance."""
    return ((upcast(x) - mean) / jnp.sqrt(upcast(variance) + eps) * weight + bias).astype(x.dtype)


def batch_statistics(x: Vectors) -> tuple[Weight, Weight]:
    """Return the mean and variance (with divisor n, not n − 1) of each feature over the batch and the positions."""
    wide, axes = upcast(x), tuple(range(x.ndim - 1))
    return wide.mean(axis=axes).astype(x.dtype), wide.var(axis=axes).astype(x.dtype)


def running_average(old: Weight, new: Weight, momentum: float) -> Weight:
    """(1 − momentum) · old + momentum · new.

    The variances have the divisor n, as in `nnx.BatchNorm`; the momentum of `nnx.BatchNorm` is 1 − `momentum`.
    """
    return (1 - momentum) * old + momentum * new


def statistics(norm: Any, x: Vectors, tap: Tap) -> tuple[Weight, Weight]:
    """Return the running mean and variance or, in training, the mean and variance of the batch.

    In training, also pass the new running statistics to `tap`.
    """
    if norm.use_running_average:
        return norm.mean[...], norm.var[...]
    mean, variance = batch_statistics(x)
    norm.mean[...] = running_average(norm.mean[...], mean, norm.config.norm_momentum)
    norm.var[...] = running_average(norm.var[...], variance, norm.config.norm_momentum)
    tap("running_mean", norm.mean[...])
    tap("running_var", norm.var[...])
    return mean, variance
