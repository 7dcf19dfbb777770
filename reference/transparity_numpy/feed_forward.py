"""The feed-forward network, applied to every position separately."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import gelu, gelu_quick, gelu_tanh, linear, relu, silu

ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu-tanh": gelu_tanh, "gelu-quick": gelu_quick, "silu": silu}


def feed_forward(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "*batch embed_dim"],
    tap: Tap = identity,
) -> Inexact[Array, "*batch embed_dim"]:
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2); gated, (activation(x Gᵀ) · x W₁ᵀ) W₂ᵀ (Shazeer
    2020)."""
    activation = ACTIVATIONS[config.activation]
    up = linear(parameters["up"], x)
    hidden = tap("hidden", activation(linear(parameters["gate"], x)) * up if config.gated else activation(up))
    return tap("output", linear(parameters["down"], hidden))
