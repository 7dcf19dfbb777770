"""Latent attention (DeepSeek-V2): queries, keys and values are projected from low-rank latent vectors."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.mixers.attention import self_attention, split_heads
from transparity_numpy.norms.heads import head_norm
from transparity_numpy.rotary.plain import rotate
from transparity_numpy.shapes import Channels, Heads, Hidden, Keys, Memory, Parameters, Queries, Values
from transparity_numpy.state.context import Context


def latent(config: TransformerConfig, parameters: Parameters, name: str, x: Hidden, tap: Tap) -> Channels:
    """norm(x Wᵀ), the latent vector of the queries (`query`) or of the keys and values (`key_value`)."""
    low = linear(parameters[f"{name}_latent"], x)
    return tap(f"{name}_latent", head_norm(config, parameters[f"{name}_latent_norm"], low))


def rotate_last(config: TransformerConfig, name: str, x: Heads, context: Context) -> Heads:
    """Rotate the last `rotated_dim` features of each head of the `query` or `key`."""
    if context.rotary is None:
        return x
    rest = config.head_dim - config.rotated_dim
    rotated = rotate(x[..., rest:], context.rotary, config.rope_layout)
    return context.tap(f"{name}_rotated", np.concatenate([x[..., :rest], rotated], axis=-1))


def latent_query(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Queries:
    """Return the query of every head, which is projected from a latent vector if `q_lora_rank` is set."""
    x = latent(config, parameters, "query", x, context.tap) if config.q_lora_rank else x
    query = context.tap("query", split_heads(linear(parameters["query"], x), config.num_heads))
    return rotate_last(config, "query", query, context)


def latent_key_value(
    config: TransformerConfig, parameters: Parameters, x: Memory, context: Context
) -> tuple[Keys, Values]:
    """Return the key and value of every head; all heads share the rotated features of the key."""
    low = latent(config, parameters, "key_value", x, context.tap)
    unrotated = split_heads(linear(parameters["key"], low), config.num_heads)
    shared = linear(parameters["key_rotary"], x)[:, None]
    every = np.broadcast_to(shared, (*unrotated.shape[:-1], shared.shape[-1]))
    key = context.tap("key", np.concatenate([unrotated, every], axis=-1))
    value = context.tap("value", split_heads(linear(parameters["value"], low), config.num_heads))
    return rotate_last(config, "key", key, context), value


def latent_attention(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """Self-attention with projections from latent vectors."""
    return self_attention(config, parameters, x, context, (latent_query, latent_key_value))
