"""The norm of queries, keys and latent vectors."""

from __future__ import annotations

from collections.abc import Mapping

from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.norms.gain import gain
from transparity_numpy.norms.rms import rms_norm
from transparity_numpy.shapes import Features


def head_norm(config: TransformerConfig, parameters: Mapping[str, Array], x: Features) -> Features:
    """RMS norm over the last axis, which has the features of one head, of all heads, or of a latent vector."""
    return rms_norm(x, gain(config, parameters["weight"]), config.norm_eps)
