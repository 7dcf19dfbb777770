"""RMS norms of the features of heads: of queries, of keys, and of latent vectors."""

from __future__ import annotations

from torch import nn

from transparity.config import TransformerConfig
from transparity_pytorch.norms.norm import gain, initial_gain, rms_norm
from transparity_pytorch.shapes import Features, Heads


class HeadNorm(nn.Module):
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""

    def __init__(self, config: TransformerConfig, features: int) -> None:
        super().__init__()
        self.config = config
        self.weight = initial_gain(config, features)

    def forward(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.weight), self.config.norm_eps)


def query_key_norm(config: TransformerConfig, norm: HeadNorm, x: Heads) -> Heads:
    """Apply an RMS norm to queries or keys, over each head (Qwen 3) or over all heads together (OLMo 2)."""
    if config.query_key_norm_over == "head":
        return norm(x)
    rows = x.transpose(1, 2)
    return norm(rows.flatten(2)).reshape(rows.shape).transpose(1, 2)
