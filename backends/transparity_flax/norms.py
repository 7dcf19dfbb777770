"""Norms, which differ in their divisor, in the axes of the mean, and in the position of eps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import Features, Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the features, where the variance uses n, not n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return (centered / jnp.sqrt(variance + eps) * weight + bias).astype(x.dtype)


def layer_norm_unbiased(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / (s + eps) · weight + bias, where s is the standard deviation with n − 1."""
    wide = upcast(x)
    mean, deviation = wide.mean(axis=-1, keepdims=True), wide.std(axis=-1, ddof=1, keepdims=True)
    return ((wide - mean) / (deviation + eps) * weight + bias).astype(x.dtype)


def rms_norm(x: Vectors, weight: Weight, eps: float) -> Vectors:
    """x / √(mean of x² + eps) · weight, over the features (Zhang and Sennrich 2019, eq. 4)."""
    wide = upcast(x)
    return (wide / jnp.sqrt((wide * wide).mean(axis=-1, keepdims=True) + eps) * weight).astype(x.dtype)


def batch_norm(x: Vectors, weight: Weight, bias: Weight, mean: Weight, variance: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias, with the given mean and variance."""
    return ((upcast(x) - mean) / jnp.sqrt(upcast(variance) + eps) * weight + bias).astype(x.dtype)


def batch_statistics(x: Vectors) -> tuple[Weight, Weight]:
    """Return the mean and variance (with n, not n − 1) of each feature over the batch and the positions."""
    wide, axes = upcast(x), tuple(range(x.ndim - 1))
    return wide.mean(axis=axes).astype(x.dtype), wide.var(axis=axes).astype(x.dtype)


def running_average(old: Weight, new: Weight, momentum: float) -> Weight:
    """(1 − momentum) · old + momentum · new. Variances have n, as in `nnx.BatchNorm`, whose momentum is 1 − ours."""
    return (1 - momentum) * old + momentum * new


def statistics(norm: Any, x: Vectors, tap: Tap) -> tuple[Weight, Weight]:
    """Return the running mean and variance or, in training, the batch's; training taps the new running statistics."""
    if norm.use_running_average:
        return norm.mean[...], norm.var[...]
    mean, variance = batch_statistics(x)
    norm.mean[...] = running_average(norm.mean[...], mean, norm.config.norm_momentum)
    norm.var[...] = running_average(norm.var[...], variance, norm.config.norm_momentum)
    tap("running_mean", norm.mean[...])
    tap("running_var", norm.var[...])
    return mean, variance


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nnx.Param[Array]:
    """Return the initial weight of a norm, with which its gain is 1; Flax calls the weight `scale`."""
    return nnx.Param(jnp.full(features, float(config.norm_gain == "weight")))


class HeadNorm(nnx.Module):
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""

    def __init__(self, config: TransformerConfig, features: int, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.scale = initial_gain(config, features)

    def __call__(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.scale[...]), self.config.norm_eps)


NORMS: dict[str, Callable[..., Vectors]] = {
    "layer": layer_norm,
    "layer-unbiased": layer_norm_unbiased,
    "rms": rms_norm,
    "batch": batch_norm,
}
"""The function for each `config.norm`."""


class Norm(nnx.Module):
    """The norm that `config.norm` names."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.scale = initial_gain(config, config.embed_dim)
        if config.has_norm_bias:
            self.bias = nnx.Param(jnp.zeros(config.embed_dim))
        self.use_running_average = True  # the attribute that nnx's train() and eval() set
        if config.norm == "batch":
            self.mean = nnx.BatchStat(jnp.zeros(config.embed_dim))
            self.var = nnx.BatchStat(jnp.ones(config.embed_dim))

    def __call__(self, x: Vectors, tap: Tap = identity) -> Vectors:
        config, affine = self.config, [gain(self.config, self.scale[...])]
        if config.norm != "rms":
            affine.append(self.bias[...] if config.norm_bias else jnp.zeros_like(affine[0]))
        if config.norm == "batch":
            affine += statistics(self, x, tap)
        return NORMS[config.norm](x, *affine, config.norm_eps)
