"""The feed-forward: every position by itself, up to a wider vector and down again."""

from __future__ import annotations

import jax
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity

ACTIVATIONS = {"relu": jax.nn.relu}


class FeedForward(nnx.Module):
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        self.activation = ACTIVATIONS[config.activation]
        self.up = nnx.Linear(config.embed_dim, config.feed_forward_dim, rngs=rngs)
        self.down = nnx.Linear(config.feed_forward_dim, config.embed_dim, rngs=rngs)

    def __call__(
        self, x: Float[Array, "batch length embed_dim"], tap: Tap = identity
    ) -> Float[Array, "batch length embed_dim"]:
        hidden = tap("hidden", self.activation(self.up(x)))
        return tap("output", self.down(hidden))
