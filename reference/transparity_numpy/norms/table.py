"""The table of norms: each norm has a file in this folder, and a row here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.norms.batch import batch_norm, statistics
from transparity_numpy.norms.gain import gain
from transparity_numpy.norms.layer import layer_norm
from transparity_numpy.norms.rms import rms_norm
from transparity_numpy.norms.unbiased import layer_norm_unbiased
from transparity_numpy.shapes import Vectors

NORMS: dict[str, Callable[..., Vectors]] = {
    "layer": layer_norm,
    "layer-unbiased": layer_norm_unbiased,
    "rms": rms_norm,
    "batch": batch_norm,
}
"""The function for each `config.norm`."""


def norm(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    x: Vectors,
    tap: Tap = identity,
    *,
    training: bool = False,
) -> Vectors:
    """The norm that `config.norm` names."""
    affine = [gain(config, parameters["weight"])]
    if config.norm != "rms":
        affine.append(parameters["bias"] if config.norm_bias else np.zeros_like(affine[0]))
    if config.norm == "batch":
        affine += statistics(config, parameters, x, tap, training=training)
    return NORMS[config.norm](x, *affine, config.norm_eps)
