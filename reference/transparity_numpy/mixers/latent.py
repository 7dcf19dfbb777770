"""Latent attention (DeepSeek-V2): queries, keys and values are projected from low-rank latent vectors."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.mixers.attention import self_attention, split_heads
from transparity_numpy.norms import head_norm
from transparity_numpy.rotary import rotate
from transparity_numpy.shapes import Channels, Heads, Hidden, Keys, Memory, Parameters, Queries, RotaryTables, Values
from transparity_numpy.state.context import LayerContext


def latent(config: TransformerConfig, parameters: Parameters, name: str, x: Hidden, tap: Tap = identity) -> Channels:
    """norm(x Wᵀ), the latent vector of the queries (`query`) or of the keys and values (`key_value`)."""
    low = linear(parameters[f"{name}_latent"], x)
    return tap(f"{name}_latent", head_norm(config, parameters[f"{name}_latent_norm"], low))


def rotate_last(config: TransformerConfig, name: str, x: Heads, rotary: RotaryTables | None, tap: Tap) -> Heads:
    """Rotate the last features of each head of the `query` or `key`."""
    if rotary is None:
        return x
    rest = config.head_dim - config.rotated_dim
    rotated = rotate(x[..., rest:], rotary, config.rope_layout)
    return tap(f"{name}_rotated", np.concatenate([x[..., :rest], rotated], axis=-1))


def latent_query(
    config: TransformerConfig,
    parameters: Parameters,
    x: Hidden,
    tap: Tap = identity,
    rotary: RotaryTables | None = None,
) -> Queries:
    """Return the query of every head, which is projected from a latent vector if `q_lora_rank` is set."""
    x = latent(config, parameters, "query", x, tap) if config.q_lora_rank else x
    query = tap("query", split_heads(linear(parameters["query"], x), config.num_heads))
    return rotate_last(config, "query", query, rotary, tap)


def latent_key_value(
    config: TransformerConfig,
    parameters: Parameters,
    x: Memory,
    tap: Tap = identity,
    rotary: RotaryTables | None = None,
) -> tuple[Keys, Values]:
    """Return the key and value of every head; all heads share the rotated features of the key."""
    low = latent(config, parameters, "key_value", x, tap)
    unrotated = split_heads(linear(parameters["key"], low), config.num_heads)
    shared = linear(parameters["key_rotary"], x)[:, None]
    every = np.broadcast_to(shared, (*unrotated.shape[:-1], shared.shape[-1]))
    key = tap("key", np.concatenate([unrotated, every], axis=-1))
    value = tap("value", split_heads(linear(parameters["value"], low), config.num_heads))
    return rotate_last(config, "key", key, rotary, tap), value


def latent_attention(config: TransformerConfig, parameters: Parameters, x: Hidden, context: LayerContext) -> Hidden:
    """Self-attention with projections from latent vectors."""
    return self_attention(config, parameters, x, context, (latent_query, latent_key_value))
