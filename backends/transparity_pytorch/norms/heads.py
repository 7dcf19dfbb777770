"""RMS norms of queries, keys and latent vectors."""

from __future__ import annotations

from typing import Any

from torch import nn

from transparity.config import TransformerConfig
from transparity_pytorch.norms.norm import gain, initial_gain
from transparity_pytorch.norms.variants import rms_norm
from transparity_pytorch.rotary.plain import rotate
from transparity_pytorch.shapes import Features, Heads
from transparity_pytorch.state.context import Context


class HeadNorm(nn.Module):
    """RMS norm over the last axis: the features of one head, of all heads, or of a latent vector."""

    def __init__(self, config: TransformerConfig, features: int) -> None:
        super().__init__()
        self.config = config
        self.weight = initial_gain(config, features)

    def forward(self, x: Features) -> Features:
        return rms_norm(x, gain(self.config, self.weight), self.config.norm_eps)


def query_key_norms(config: TransformerConfig) -> tuple[HeadNorm, HeadNorm]:
    """Return the norm layers for queries and keys; each layer normalizes over one head or over all heads."""
    query, key = (config.num_heads, config.key_value_heads) if config.query_key_norm_over == "projection" else (1, 1)
    return HeadNorm(config, query * config.head_dim), HeadNorm(config, key * config.head_dim)


def query_key_norm(config: TransformerConfig, norm: HeadNorm, x: Heads) -> Heads:
    """Apply an RMS norm to queries or keys, over each head (Qwen 3) or over all heads together (OLMo 2)."""
    if config.query_key_norm_over == "head":
        return norm(x)
    rows = x.transpose(1, 2)
    return norm(rows.flatten(2)).reshape(rows.shape).transpose(1, 2)


def normalize_and_rotate(module: Any, name: str, x: Heads, context: Context) -> Heads:
    """Apply the QK norm and the rotation, if the configuration has them, to the `query` or `key` of attention."""
    config, tap, rotary = module.config, context.tap, context.rotary
    if config.query_key_norm:
        x = tap(f"{name}_norm", query_key_norm(config, getattr(module, f"{name}_norm"), x))
    return x if rotary is None else tap(f"{name}_rotated", rotate(x, rotary, config.rope_layout))
