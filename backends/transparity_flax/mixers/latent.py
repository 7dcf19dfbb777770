"""Latent attention (DeepSeek-V2): queries, keys and values are projected from low-rank latent vectors."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity_flax.mixers.attention import SelfAttention, split_heads
from transparity_flax.norms.heads import HeadNorm
from transparity_flax.rotary.plain import rotate
from transparity_flax.shapes import Channels, Heads, Hidden, Keys, Memory, Queries, Values
from transparity_flax.state.context import Context


def latent(module: LatentAttention, name: str, x: Hidden, tap: Tap) -> Channels:
    """norm(x Wᵀ), the latent vector of the queries (`query`) or of the keys and values (`key_value`)."""
    return tap(f"{name}_latent", getattr(module, f"{name}_latent_norm")(getattr(module, f"{name}_latent")(x)))


def rotate_last(config: TransformerConfig, name: str, x: Heads, context: Context) -> Heads:
    """Rotate the last `rotated_dim` features of each head of the `query` or `key`."""
    if context.rotary is None:
        return x
    rest = config.head_dim - config.rotated_dim
    rotated = rotate(x[..., rest:], context.rotary, config.rope_layout)
    return context.tap(f"{name}_rotated", jnp.concatenate([x[..., :rest], rotated], axis=-1))


def latent_query(module: LatentAttention, x: Hidden, context: Context) -> Queries:
    """Return the query of every head, which is projected from a latent vector if `q_lora_rank` is set."""
    x = latent(module, "query", x, context.tap) if module.config.q_lora_rank else x
    query = context.tap("query", split_heads(module.query(x), module.config.num_heads))
    return rotate_last(module.config, "query", query, context)


def latent_key_value(module: LatentAttention, x: Memory, context: Context) -> tuple[Keys, Values]:
    """Return the key and value of every head; all heads share the rotated features of the key."""
    low, num_heads = latent(module, "key_value", x, context.tap), module.config.num_heads
    unrotated, shared = split_heads(module.key(low), num_heads), module.key_rotary(x)[:, None]
    every = jnp.broadcast_to(shared, (*unrotated.shape[:-1], shared.shape[-1]))
    key = context.tap("key", jnp.concatenate([unrotated, every], axis=-1))
    value = context.tap("value", split_heads(module.value(low), num_heads))
    return rotate_last(module.config, "key", key, context), value


class LatentAttention(SelfAttention):
    """Self-attention with projections from latent vectors."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        into, low, heads = config.embed_dim, config.kv_lora_rank or 0, config.num_heads
        if rank := config.q_lora_rank:
            self.query_latent = nnx.Linear(into, rank, use_bias=False, rngs=rngs)
            self.query_latent_norm = HeadNorm(config, rank, rngs=rngs)
            self.query = nnx.Linear(rank, config.attention_dim, use_bias=False, rngs=rngs)
        self.key_value_latent = nnx.Linear(into, low, use_bias=False, rngs=rngs)
        self.key_value_latent_norm = HeadNorm(config, low, rngs=rngs)
        self.key = nnx.Linear(low, heads * config.projected_key_dim, use_bias=False, rngs=rngs)
        self.value = nnx.Linear(low, heads * config.value_dim, use_bias=False, rngs=rngs)
        self.key_rotary = nnx.Linear(into, config.rotated_dim, use_bias=False, rngs=rngs)

    def project(self, x: Hidden, context: Context) -> tuple[Queries, Keys, Values]:
        return latent_query(self, x, context), *latent_key_value(self, x, context)
