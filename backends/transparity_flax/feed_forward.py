"""The feed-forward network, applied to every position separately."""

from __future__ import annotations

from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_flax.activations import ACTIVATIONS, gated
from transparity_flax.shapes import Vectors


class FeedForward(nnx.Module):
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2) or (activation(x Gᵀ) · x W₁ᵀ) W₂ᵀ (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig, wide: int | None = None, *, rngs: nnx.Rngs) -> None:
        self.config = config
        wide, bias = wide or config.feed_forward_dim, config.feed_forward_bias
        self.gate = nnx.Linear(config.embed_dim, wide, use_bias=bias, rngs=rngs) if config.gated else None
        self.up = nnx.Linear(config.embed_dim, wide, use_bias=bias, rngs=rngs)
        self.down = nnx.Linear(wide, config.embed_dim, use_bias=bias, rngs=rngs)

    def __call__(self, x: Vectors, tap: Tap = identity) -> Vectors:
        up, activation = self.up(x), ACTIVATIONS[self.config.activation]
        hidden = gated(self.config, self.gate(x), up) if self.gate is not None else activation(up)
        return tap("output", self.down(tap("hidden", hidden)))
