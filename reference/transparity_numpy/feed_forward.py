"""The feed-forward network, applied to every position separately."""

from __future__ import annotations

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.activations import ACTIVATIONS, gated
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.shapes import Parameters, Vectors


def feed_forward(config: TransformerConfig, parameters: Parameters, x: Vectors, tap: Tap = identity) -> Vectors:
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2) or (activation(x Gᵀ) · x W₁ᵀ) W₂ᵀ (Shazeer 2020)."""
    up = linear(parameters["up"], x)
    hidden = gated(config, linear(parameters["gate"], x), up) if config.gated else ACTIVATIONS[config.activation](up)
    return tap("output", linear(parameters["down"], tap("hidden", hidden)))
