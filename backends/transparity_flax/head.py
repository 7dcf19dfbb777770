"""The head: logits, hidden states, a pooled state or its classes from the last layer's output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Int

from transparity.config import TransformerConfig
from transparity_flax.arithmetic.softcap import apply_softcap
from transparity_flax.feed_forward import ACTIVATIONS
from transparity_flax.normalization import Norm


def transform_for_head(
    config: TransformerConfig, linear: nnx.Linear, norm: Norm, x: Float[Array, "*batch embed_dim"]
) -> Float[Array, "*batch embed_dim"]:
    """norm(activation(x Wᵀ + b)), in front of a head (Devlin et al. 2019, §3.1, and their code)."""
    return norm(ACTIVATIONS[config.activation](linear(x)))


POOLERS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": ACTIVATIONS["relu"],
    "gelu": ACTIVATIONS["gelu"],
}
"""Activations behind the linear map of a pooled state."""


def pool(
    config: TransformerConfig,
    x: Float[Array, "batch length embed_dim"],
    is_token: Bool[Array, "batch length"],
    tokens: Int[Array, "batch length"] | None,
) -> Float[Array, "batch embed_dim"]:
    """One state of each row: the first position (Devlin et al. 2019), the mean of the visible ones (Reimers and
    Gurevych 2019, §3), the last of them, or the first `eos_id` or largest token (Radford et al. 2021, §2.4); in a row
    without any, these are the first position, and the mean 0."""
    if config.pooling == "mean":
        count = jnp.maximum(is_token.sum(axis=1, keepdims=True), 1).astype(x.dtype)
        return (x * is_token[:, :, None]).sum(axis=1) / count
    if config.pooling == "first":
        return x[:, 0]
    rank = jnp.arange(x.shape[1]) * is_token
    if config.pooling != "last":
        assert tokens is not None  # images are not pooled by tokens
        eos = -1 if config.eos_id is None else config.eos_id
        rank = tokens if config.pooling == "largest" else (tokens == eos).astype(int)
    return x[jnp.arange(len(x)), rank.argmax(axis=1)]


def pooled_head(
    model: Any, config: TransformerConfig, x: Float[Array, "batch embed_dim"]
) -> Float[Array, "batch classes"] | Float[Array, "batch embed_dim"]:
    """The pooled state through the pooler, if there is one, and for `classes` a linear map to them."""
    if config.has_pooler:
        x = POOLERS[config.pooler](model.pooler(x))
    if config.head == "pooled":
        return x
    if config.head_transform:
        x = transform_for_head(config, model.head_transform, model.head_norm, x)
    classes: Array = model.head(x)
    return classes


def head(
    config: TransformerConfig,
    linear: nnx.Linear,
    x: Float[Array, "batch length embed_dim"],
    table: Float[Array, "vocab embed_dim"] | None,
) -> Float[Array, "batch length vocab"]:
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4). `table` are the token embeddings, for a tied head."""
    if config.head_input_scale != 1:
        x = x * config.head_input_scale
    logits = linear(x) if table is None else _tied(linear, x, table)
    return logits if config.final_softcap is None else apply_softcap(logits, config.final_softcap)


def _tied(
    linear: nnx.Linear, x: Float[Array, "batch length embed_dim"], table: Float[Array, "vocab embed_dim"]
) -> Float[Array, "batch length vocab"]:
    """Multiply by the token embeddings (Press and Wolf 2017); the bias is the head's own."""
    logits = x @ table.T
    return logits if linear.bias is None else logits + linear.bias[...]
