"""Normalization layers; they differ in the deviation they divide by, its axes, and the position of eps."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Features, Vectors, Weight


def layer_norm(
    x: Vectors,
    weight: Weight,
    bias: Weight,
    eps: float,
) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the features, the variance over n (Ba et al. 2016)."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return (centered / jnp.sqrt(variance + eps) * weight + bias).astype(x.dtype)


def layer_norm_unbiased(
    x: Vectors,
    weight: Weight,
    bias: Weight,
    eps: float,
) -> Vectors:
    """(x − mean) / (deviation + eps) · weight + bias, the deviation over n − 1, eps outside the root (document 003)."""
    wide = upcast(x)
    mean, deviation = wide.mean(axis=-1, keepdims=True), wide.std(axis=-1, ddof=1, keepdims=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).astype(x.dtype)


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    return (wide / jnp.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps) * weight).astype(x.dtype)


def batch_norm(
    x: Vectors,
    weight: Weight,
    bias: Weight,
    mean: Weight,
    variance: Weight,
    eps: float,
) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias with given statistics (document 001; Ioffe and Szegedy 2015)."""
    return ((upcast(x) - mean) / jnp.sqrt(upcast(variance) + eps) * weight + bias).astype(x.dtype)


def batch_statistics(
    x: Vectors,
) -> tuple[Weight, Weight]:
    """Mean and variance (over n) of each feature over the batch and the positions."""
    wide, axes = upcast(x), tuple(range(x.ndim - 1))
    return wide.mean(axis=axes).astype(x.dtype), wide.var(axis=axes).astype(x.dtype)


def running_average(old: Weight, new: Weight, momentum: float) -> Weight:
    """(1 − momentum) · old + momentum · new. Document 001 averages the variance over n, and so does `nnx.BatchNorm`,
    whose `momentum` is the share of the old."""
    return (1 - momentum) * old + momentum * new


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Gain of a norm: its weight, or 1 + its weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


class HeadNorm(nnx.Module):
    """RMS norm of queries or keys, over so many features."""

    def __init__(self, config: TransformerConfig, features: int, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.scale = nnx.Param(_first_gain(config, features))

    def __call__(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.scale[...]), self.config.norm_eps)


class Norm(nnx.Module):
    """Norm that `config.norm` names; in training, a batch norm taps its new `running_mean` and `running_var`."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.scale = nnx.Param(_first_gain(config, config.embed_dim))
        if config.has_norm_bias:
            self.bias = nnx.Param(jnp.zeros(config.embed_dim))
        self.use_running_average = True  # what nnx's train() and eval() switch
        if config.norm == "batch":
            self.mean = nnx.BatchStat(jnp.zeros(config.embed_dim))
            self.var = nnx.BatchStat(jnp.ones(config.embed_dim))

    def __call__(self, x: Vectors, tap: Tap = identity) -> Vectors:
        config, weight = self.config, gain(self.config, self.scale[...])
        if config.norm == "rms":
            return rms_norm(x, weight, config.norm_eps)
        bias = self.bias[...] if config.norm_bias else jnp.zeros_like(weight)
        if config.norm == "layer":
            return layer_norm(x, weight, bias, config.norm_eps)
        if config.norm == "layer-unbiased":
            return layer_norm_unbiased(x, weight, bias, config.norm_eps)
        mean, variance = self.mean[...], self.var[...]
        if not self.use_running_average:
            mean, variance = batch_statistics(x)
            self.mean[...] = running_average(self.mean[...], mean, config.norm_momentum)
            self.var[...] = running_average(self.var[...], variance, config.norm_momentum)
            tap("running_mean", self.mean[...])
            tap("running_var", self.var[...])
        return batch_norm(x, weight, bias, mean, variance, config.norm_eps)


def _first_gain(config: TransformerConfig, features: int) -> Weight:
    """The weight of a norm whose gain is 1; Flax calls it `scale`."""
    return (jnp.ones if config.norm_gain == "weight" else jnp.zeros)(features)
