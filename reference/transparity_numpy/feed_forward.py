"""The feed-forward network, applied to every position separately."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import gelu, gelu_quick, gelu_tanh, linear, relu, silu
from transparity_numpy.shapes import Features, Parameters, Vectors

ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu-tanh": gelu_tanh, "gelu-quick": gelu_quick, "silu": silu}


def gated(config: TransformerConfig, gate: Features, up: Features) -> Features:
    """activation(gate) · (up + offset) (Shazeer 2020), both bounded if there is a limit (gpt-oss)."""
    if (limit := config.gate_limit) is not None:
        gate, up = np.minimum(gate, gate.dtype.type(limit)), np.clip(up, up.dtype.type(-limit), up.dtype.type(limit))
    up = up + up.dtype.type(config.up_offset) if config.up_offset else up
    return ACTIVATIONS[config.activation](gate) * up


def feed_forward(config: TransformerConfig, parameters: Parameters, x: Vectors, tap: Tap = identity) -> Vectors:
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2) or (activation(x Gᵀ) · x W₁ᵀ) W₂ᵀ (Shazeer 2020)."""
    up = linear(parameters["up"], x)
    hidden = gated(config, linear(parameters["gate"], x), up) if config.gated else ACTIVATIONS[config.activation](up)
    return tap("output", linear(parameters["down"], tap("hidden", hidden)))
