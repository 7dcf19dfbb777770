"""The gain of a norm, the norm of queries, keys and latent vectors, and the table of norms."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.norms.batch import batch_norm, statistics
from transparity_flax.norms.layer import layer_norm, layer_norm_unbiased, rms_norm
from transparity_flax.shapes import Features, Vectors, Weight


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nnx.Param[Array]:
    """Return the initial weight of a norm, with which its gain is 1; Flax calls the weight `scale`."""
    return nnx.Param(jnp.full(features, float(config.norm_gain == "weight")))


class HeadNorm(nnx.Module):
    """RMS norm over the last axis, which has the features of one head, of all heads, or of a latent vector."""

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
