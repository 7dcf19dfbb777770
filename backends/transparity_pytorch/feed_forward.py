"""The feed-forward network, applied to every position separately."""

from __future__ import annotations

from torch import nn

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.activations import ACTIVATIONS, gated
from transparity_pytorch.shapes import Vectors


class FeedForward(nn.Module):
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2) or (activation(x Gᵀ) · x W₁ᵀ) W₂ᵀ (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig, wide: int | None = None) -> None:
        super().__init__()
        self.config = config
        wide, bias = wide or config.feed_forward_dim, config.feed_forward_bias
        self.gate = nn.Linear(config.embed_dim, wide, bias=bias) if config.gated else None
        self.up = nn.Linear(config.embed_dim, wide, bias=bias)
        self.down = nn.Linear(wide, config.embed_dim, bias=bias)

    def forward(self, x: Vectors, tap: Tap = identity) -> Vectors:
        up, activation = self.up(x), ACTIVATIONS[self.config.activation]
        hidden = gated(self.config, self.gate(x), up) if self.gate is not None else activation(up)
        return tap("output", self.down(tap("hidden", hidden)))
