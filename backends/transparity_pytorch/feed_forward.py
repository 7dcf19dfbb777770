"""The feed-forward: every position by itself, up to a wider vector and down again."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity

ACTIVATIONS = {"relu": F.relu}


class FeedForward(nn.Module):
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.up = nn.Linear(config.embed_dim, config.feed_forward_dim)
        self.down = nn.Linear(config.feed_forward_dim, config.embed_dim)

    def forward(
        self, x: Float[Tensor, "batch length embed_dim"], tap: Tap = identity
    ) -> Float[Tensor, "batch length embed_dim"]:
        hidden = tap("hidden", self.activation(self.up(x)))
        return tap("output", self.down(hidden))
