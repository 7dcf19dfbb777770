"""Normalization layers; they differ in the deviation they divide by, its axes, and the position of eps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.precision import upcast


def layer_norm(
    x: Inexact[Array, "*batch embed_dim"],
    weight: Inexact[Array, " embed_dim"],
    bias: Inexact[Array, " embed_dim"],
    eps: float,
) -> Inexact[Array, "*batch embed_dim"]:
    """(x − mean) / √(variance + eps) · weight + bias over the features, the variance over n (Ba et al. 2016)."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return _like((x, weight, bias), centered / np.sqrt(variance + wide.dtype.type(eps)) * weight + bias)


def layer_norm_unbiased(
    x: Inexact[Array, "*batch embed_dim"],
    weight: Inexact[Array, " embed_dim"],
    bias: Inexact[Array, " embed_dim"],
    eps: float,
) -> Inexact[Array, "*batch embed_dim"]:
    """(x − mean) / (deviation + eps) · weight + bias, the deviation over n − 1, eps outside the root (document 003)."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).sum(axis=-1, keepdims=True) / wide.dtype.type(x.shape[-1] - 1)
    return _like((x, weight, bias), centered / (np.sqrt(variance) + wide.dtype.type(eps)) * weight + bias)


def rms_norm(
    x: Inexact[Array, "*batch embed_dim"], weight: Inexact[Array, " embed_dim"], eps: float
) -> Inexact[Array, "*batch embed_dim"]:
    """x / √(mean of x² + eps) · weight over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    size = np.sqrt((wide * wide).mean(axis=-1, keepdims=True) + wide.dtype.type(eps))
    return _like((x, weight), wide / size * weight)


def batch_norm(
    x: Inexact[Array, "*batch embed_dim"],
    weight: Inexact[Array, " embed_dim"],
    bias: Inexact[Array, " embed_dim"],
    mean: Inexact[Array, " embed_dim"],
    variance: Inexact[Array, " embed_dim"],
    eps: float,
) -> Inexact[Array, "*batch embed_dim"]:
    """(x − mean) / √(variance + eps) · weight + bias with given statistics (document 001; Ioffe and Szegedy 2015)."""
    wide, variance = upcast(x), upcast(variance)
    return _like((x, weight, bias), (wide - mean) / np.sqrt(variance + wide.dtype.type(eps)) * weight + bias)


def batch_statistics(
    x: Inexact[Array, "*batch embed_dim"],
) -> tuple[Inexact[Array, " embed_dim"], Inexact[Array, " embed_dim"]]:
    """Mean and variance (over n) of each feature over the batch and the positions."""
    wide, axes = upcast(x), tuple(range(x.ndim - 1))
    mean = wide.mean(axis=axes)
    centered = wide - mean
    return mean.astype(x.dtype, copy=False), (centered * centered).mean(axis=axes).astype(x.dtype, copy=False)


def running_average(
    old: Inexact[Array, " embed_dim"], new: Inexact[Array, " embed_dim"], momentum: float
) -> Inexact[Array, " embed_dim"]:
    """(1 − momentum) · old + momentum · new. Document 001 averages the variance over n; `torch.nn.BatchNorm1d`
    normalizes by it too, but averages the variance over n − 1."""
    share = old.dtype.type(momentum)
    return (1 - share) * old + share * new


def gain(config: TransformerConfig, weight: Inexact[Array, " embed_dim"]) -> Inexact[Array, " embed_dim"]:
    """Gain of a norm: its weight, or 1 + its weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def head_norm(
    config: TransformerConfig, parameters: Mapping[str, Array], x: Inexact[Array, "*batch features"]
) -> Inexact[Array, "*batch features"]:
    """RMS norm of queries or keys."""
    return rms_norm(x, gain(config, parameters["weight"]), config.norm_eps)


def norm(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    x: Inexact[Array, "*batch embed_dim"],
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Inexact[Array, "*batch embed_dim"]:
    """Norm that `config.norm` names; in training, a batch norm taps its new `running_mean` and `running_var`."""
    weight = gain(config, parameters["weight"])
    if config.norm == "rms":
        return rms_norm(x, weight, config.norm_eps)
    bias = parameters["bias"] if config.norm_bias else np.zeros_like(weight)
    if config.norm == "layer":
        return layer_norm(x, weight, bias, config.norm_eps)
    if config.norm == "layer-unbiased":
        return layer_norm_unbiased(x, weight, bias, config.norm_eps)
    mean, variance = parameters["running_mean"], parameters["running_var"]
    if training:
        old_mean, old_variance = mean, variance
        mean, variance = batch_statistics(x)
        tap("running_mean", running_average(old_mean, mean, config.norm_momentum))
        tap("running_var", running_average(old_variance, variance, config.norm_momentum))
    return batch_norm(x, weight, bias, mean, variance, config.norm_eps)


def _like(given: Sequence[Array], value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """`value` in the joint dtype of the inputs, any of which may be complex."""
    return value.astype(np.result_type(*given), copy=False)
