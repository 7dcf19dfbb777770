"""Latent attention (DeepSeek-V2): queries, keys and values are projected from low-rank latent vectors."""

from __future__ import annotations

import torch
from torch import nn

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity_pytorch.mixers.attention import AttentionProjections, SelfAttention, split_heads
from transparity_pytorch.norms.heads import HeadNorm
from transparity_pytorch.rotary.plain import rotate
from transparity_pytorch.shapes import Features, Heads, Hidden, Keys, Memory, Queries, Values
from transparity_pytorch.state.context import Context


def latent(module: AttentionProjections, name: str, x: Hidden, tap: Tap) -> Features:
    """norm(x Wᵀ), the latent vector of the queries (`query`) or of the keys and values (`key_value`)."""
    return tap(f"{name}_latent", getattr(module, f"{name}_latent_norm")(getattr(module, f"{name}_latent")(x)))


def rotate_last(config: TransformerConfig, name: str, x: Heads, context: Context) -> Heads:
    """Rotate the last `rotated_dim` features of each head of the `query` or `key`."""
    if context.rotary is None:
        return x
    rest = config.head_dim - config.rotated_dim
    rotated = rotate(x[..., rest:], context.rotary, config.rope_layout)
    return context.tap(f"{name}_rotated", torch.cat([x[..., :rest], rotated], dim=-1))


def latent_query(module: AttentionProjections, x: Hidden, context: Context) -> Queries:
    """Return the query of every head, which is projected from a latent vector if `q_lora_rank` is set."""
    x = latent(module, "query", x, context.tap) if module.config.q_lora_rank else x
    query = context.tap("query", split_heads(module.query(x), module.config.num_heads))
    return rotate_last(module.config, "query", query, context)


def latent_key_value(module: LatentAttention, x: Memory, context: Context) -> tuple[Keys, Values]:
    """Return the key and value of every head; all heads share the rotated features of the key."""
    low = latent(module, "key_value", x, context.tap)
    unrotated = split_heads(module.key(low), module.config.num_heads)
    shared = module.key_rotary(x)[:, None].expand(*unrotated.shape[:-1], -1)
    key = context.tap("key", torch.cat([unrotated, shared], dim=-1))
    value = context.tap("value", split_heads(module.value(low), module.config.num_heads))
    return rotate_last(module.config, "key", key, context), value


class LatentAttention(SelfAttention):
    """Self-attention with projections from latent vectors."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        into, low, heads = config.embed_dim, config.kv_lora_rank or 0, config.num_heads
        if rank := config.q_lora_rank:
            self.query_latent = nn.Linear(into, rank, bias=False)
            self.query_latent_norm = HeadNorm(config, rank)
            self.query = nn.Linear(rank, config.attention_dim, bias=False)
        self.key_value_latent = nn.Linear(into, low, bias=False)
        self.key_value_latent_norm = HeadNorm(config, low)
        self.key = nn.Linear(low, heads * config.projected_key_dim, bias=False)
        self.value = nn.Linear(low, heads * config.value_dim, bias=False)
        self.key_rotary = nn.Linear(into, config.rotated_dim, bias=False)

    def project(self, x: Hidden, context: Context) -> tuple[Queries, Keys, Values]:
        return latent_query(self, x, context), *latent_key_value(self, x, context)
