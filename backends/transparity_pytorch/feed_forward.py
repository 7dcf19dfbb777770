"""The feed-forward network, applied to every position separately."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_pytorch.shapes import Features, Vectors


def _gelu_quick(x: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch"]:
    """x · σ(1.702 x): the sigmoid approximation of GELU (Hendrycks and Gimpel 2016, §2)."""
    return x * (1.702 * x).sigmoid()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "gelu-quick": _gelu_quick,
    "silu": F.silu,
}


def gated(config: TransformerConfig, gate: Features, up: Features) -> Features:
    """activation(gate) · (up + offset) (Shazeer 2020), both bounded if there is a limit (gpt-oss)."""
    if (limit := config.gate_limit) is not None:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    up = up + config.up_offset if config.up_offset else up
    return ACTIVATIONS[config.activation](gate) * up


class FeedForward(nn.Module):
    """activation(x W₁ᵀ + b₁) W₂ᵀ + b₂ (Vaswani et al. 2017, eq. 2) or (activation(x Gᵀ) · x W₁ᵀ) W₂ᵀ (Shazeer 2020)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        wide, bias = config.feed_forward_dim, config.feed_forward_bias
        self.gate = nn.Linear(config.embed_dim, wide, bias=bias) if config.gated else None
        self.up = nn.Linear(config.embed_dim, wide, bias=bias)
        self.down = nn.Linear(wide, config.embed_dim, bias=bias)

    def forward(self, x: Vectors, tap: Tap = identity) -> Vectors:
        up = self.up(x)
        activation = ACTIVATIONS[self.config.activation]
        hidden = gated(self.config, self.gate(x), up) if self.gate is not None else activation(up)
        return tap("output", self.down(tap("hidden", hidden)))
