"""Activation functions, and gated linear units."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import gelu, gelu_quick, gelu_tanh, relu, silu
from transparity_numpy.shapes import Features

ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu-tanh": gelu_tanh, "gelu-quick": gelu_quick, "silu": silu}
"""The function for each value of `config.activation`."""


def gated(config: TransformerConfig, gate: Features, up: Features) -> Features:
    """activation(gate) · (up + `up_offset`) (Shazeer 2020); a `gate_limit` first bounds gate and up (gpt-oss)."""
    if (limit := config.gate_limit) is not None:
        gate, up = np.minimum(gate, gate.dtype.type(limit)), np.clip(up, up.dtype.type(-limit), up.dtype.type(limit))
    up = up + up.dtype.type(config.up_offset) if config.up_offset else up
    return ACTIVATIONS[config.activation](gate) * up
