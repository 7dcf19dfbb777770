"""The feed-forward network, applied to every position separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.shapes import Features, Vectors


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


def gated(config: TransformerConfig, gate: Features, up: Features) -> Features:
    """activation(gate) · (up + offset) (Shazeer 2020), both bounded if there is a limit (gpt-oss)."""
    if (limit := config.gate_limit) is not None:
        gate, up = jnp.minimum(gate, limit), jnp.clip(up, -limit, limit)
    up = up + config.up_offset if config.up_offset else up
    return ACTIVATIONS[config.activation](gate) * up


class FeedForward(nnx.Module):
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2) or (activation(x Gᵀ) · x W₁ᵀ) W₂ᵀ (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        wide, bias = config.feed_forward_dim, config.feed_forward_bias
        self.gate = nnx.Linear(config.embed_dim, wide, use_bias=bias, rngs=rngs) if config.gated else None
        self.up = nnx.Linear(config.embed_dim, wide, use_bias=bias, rngs=rngs)
        self.down = nnx.Linear(wide, config.embed_dim, use_bias=bias, rngs=rngs)

    def __call__(self, x: Vectors, tap: Tap = identity) -> Vectors:
        up = self.up(x)
        activation = ACTIVATIONS[self.config.activation]
        hidden = gated(self.config, self.gate(x), up) if self.gate is not None else activation(up)
        return tap("output", self.down(tap("hidden", hidden)))
