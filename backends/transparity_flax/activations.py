"""Activation functions, and gated linear units."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.shapes import Features


def _gelu_quick(x: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """x · σ(1.702 x): the sigmoid approximation of GELU (Hendrycks and Gimpel 2016, §2)."""
    return x * jax.nn.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu-tanh": partial(jax.nn.gelu, approximate=True),
    "gelu-quick": _gelu_quick,
    "silu": jax.nn.silu,
}
"""The function for each value of `config.activation`."""


def gated(config: TransformerConfig, gate: Features, up: Features) -> Features:
    """activation(gate) · (up + `up_offset`) (Shazeer 2020); a `gate_limit` first bounds gate and up (gpt-oss)."""
    if (limit := config.gate_limit) is not None:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    up = up + config.up_offset if config.up_offset else up
    return ACTIVATIONS[config.activation](gate) * up
