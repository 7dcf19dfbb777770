"""The gain of a norm, the norm of queries, keys and latent vectors, and the table of norms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.norms.batch import batch_norm, statistics
from transparity_numpy.norms.layer import layer_norm, layer_norm_unbiased, rms_norm
from transparity_numpy.shapes import Features, Parameters, Vectors, Weight


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def head_norm(config: TransformerConfig, parameters: Parameters, x: Features) -> Features:
    """RMS norm over the last axis, which has the features of one head, of all heads, or of a latent vector."""
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
