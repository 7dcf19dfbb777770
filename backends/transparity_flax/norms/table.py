"""The table of norms: each norm has a file in this folder, and a row here."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.norms.batch import batch_norm, statistics
from transparity_flax.norms.gain import gain, initial_gain
from transparity_flax.norms.layer import layer_norm
from transparity_flax.norms.rms import rms_norm
from transparity_flax.norms.unbiased import layer_norm_unbiased
from transparity_flax.shapes import Vectors

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
