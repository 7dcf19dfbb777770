"""Norms, which differ in their divisor, in the axes of the mean, and in the position of eps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import cast_like
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import Features, Parameters, Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the features, where the variance uses n, not n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    y = centered / np.sqrt(variance + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).sum(axis=-1, keepdims=True) / wide.dtype.type(x.shape[-1] - 1)
    y = centered / (np.sqrt(variance) + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    size = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + wide.dtype.type(eps))
    return cast_like(wide / size * weight, x, weight)


def batch_norm(x: Vectors, weight: Weight, bias: Weight, mean: Weight, variance: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias, with the given mean and variance."""
    wide, variance = upcast(x), upcast(variance)
    y = (wide - mean) / np.sqrt(variance + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)


def batch_statistics(x: Vectors) -> tuple[Weight, Weight]:
    """Return the mean and variance (with n, not n − 1) of each feature over the batch and the positions."""
    wide, axes = upcast(x), tuple(range(x.ndim - 1))
    mean = wide.mean(axis=axes)
    centered = wide - mean
    return mean.astype(x.dtype, copy=False), (centered * centered).mean(axis=axes).astype(x.dtype, copy=False)


def running_average(old: Weight, new: Weight, momentum: float) -> Weight:
    """(1 − momentum) · old + momentum · new. Variances have n (document 001); `torch.nn.BatchNorm1d` has n − 1."""
    share = old.dtype.type(momentum)
    return (1 - share) * old + share * new


def statistics(
    config: TransformerConfig, parameters: Parameters, x: Vectors, tap: Tap, *, training: bool = False
) -> tuple[Weight, Weight]:
    """Return the running mean and variance or, in training, the batch's; training taps the new running statistics."""
    old_mean, old_variance = parameters["running_mean"], parameters["running_var"]
    if not training:
        return old_mean, old_variance
    mean, variance = batch_statistics(x)
    tap("running_mean", running_average(old_mean, mean, config.norm_momentum))
    tap("running_var", running_average(old_variance, variance, config.norm_momentum))
    return mean, variance


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def head_norm(config: TransformerConfig, parameters: Parameters, x: Features) -> Features:
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""
    return rms_norm(x, gain(config, parameters["weight"]), config.norm_eps)


NORMS: dict[str, Callable[..., Vectors]] = {
    "layer": layer_norm,
    "layer-unbiased": layer_norm_unbiased,
    "rms": rms_norm,
    "batch": batch_norm,
}
"""The function for each `config.norm`."""


def norm(
    config: TransformerConfig, parameters: Parameters, x: Vectors, tap: Tap = identity, *, training: bool = False
) -> Vectors:
    """The norm that `config.norm` names."""
    affine = [gain(config, parameters["weight"])]
    if config.norm != "rms":
        affine.append(parameters["bias"] if config.norm_bias else np.zeros_like(affine[0]))
    if config.norm == "batch":
        affine += statistics(config, parameters, x, tap, training=training)
    return NORMS[config.norm](x, *affine, config.norm_eps)
