"""Norms over the features of a position, and the choice of a norm by the configuration."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import cast_like
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.norms.batch import batch_norm, statistics
from transparity_numpy.norms.variants import layer_norm_unbiased, rms_norm
from transparity_numpy.shapes import Parameters, Vectors, Weight


def layer_norm(x: Vectors, weight: Weight, bias: Weight, eps: float) -> Vectors:
    """(x − mean) / √(variance + eps) · weight + bias over the n features; the variance's divisor is n, not n − 1."""
    wide = upcast(x)
    centered = wide - wide.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    y = centered / np.sqrt(variance + wide.dtype.type(eps)) * weight + bias
    return cast_like(y, x, weight, bias)


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    return weight if config.norm_gain == "weight" else 1 + weight


NORMS: dict[str, Callable[..., Vectors]] = {
    "layer": layer_norm,
    "layer-unbiased": layer_norm_unbiased,
    "rms": rms_norm,
    "batch": batch_norm,
}
"""The function for each value of `config.norm`."""


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
