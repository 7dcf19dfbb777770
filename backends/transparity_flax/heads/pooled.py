"""Pooling to one state per row, and the pooler: a linear map of this state, followed by an activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool

from transparity.config import TransformerConfig
from transparity_flax.activations import ACTIVATIONS
from transparity_flax.shapes import Hidden, PooledState, TokenIds

POOLERS: dict[str, Callable[[Array], Array]] = {
    "tanh": jnp.tanh,
    "relu": ACTIVATIONS["relu"],
    "gelu": ACTIVATIONS["gelu"],
}
"""The function for each value of `config.pooler` except `none`."""


def pool(
    config: TransformerConfig, x: Hidden, is_token: Bool[Array, "batch length"], tokens: TokenIds | None
) -> PooledState:
    """Return one state per row, chosen or averaged as `config.pooling` says.

    `first` is the first state (Devlin et al. 2019), and `last` is the last state that is not padding. `mean` averages
    all states that are not padding (Reimers and Gurevych 2019, §3). `eos` is the state of the first `eos_id`, and
    `largest` is the state of the largest token id (Radford et al. 2021, §2.4). In a row with only padding, `mean` is 0,
    and `last` is the first state. In a row without `eos_id`, `eos` is the first state."""
    if config.pooling == "mean":
        count = jnp.maximum(is_token.sum(axis=1, keepdims=True), 1).astype(x.dtype)
        return (x * is_token[:, :, None]).sum(axis=1) / count
    if config.pooling == "first":
        return x[:, 0]
    rank = jnp.arange(x.shape[1]) * is_token
    if config.pooling != "last":
        assert tokens is not None  # images have no tokens
        rank = tokens if config.pooling == "largest" else (tokens == config.ending_id).astype(int)
    return x[jnp.arange(len(x)), rank.argmax(axis=1)]


def pooled(config: TransformerConfig, model: Any, x: PooledState) -> PooledState:
    """activation(x Wᵀ + b) if there is a pooler, else x, where x is the pooled state."""
    return POOLERS[config.pooler](model.pooler(x)) if config.has_pooler else x
