"""Norms over the features of a position, and the choice of a norm by the configuration."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.arithmetic.precision import upcast
from transparity_flax.norms.batch import batch_norm, statistics
from transparity_flax.norms.variants import layer_norm_unbiased, rms_norm
from transparity_flax.shapes import Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the n features; the variance's divisor is n, not n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return (centered / jnp.sqrt(variance + eps) * weight + bias).astype(x.dtype)


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nnx.Param[Array]:
    """Return the initial weight of a norm: 1, or 0 if the gain is 1 + weight. Flax calls the weight `scale`."""
    return nnx.Param(jnp.full(features, float(config.norm_gain == "weight")))


NORMS: dict[str, Callable[..., Vectors]] = {
    "layer": layer_norm,
    "layer-unbiased": layer_norm_unbiased,
    "rms": rms_norm,
    "batch": batch_norm,
}
"""The function for each value of `config.norm`."""


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
