"""The head: what comes out of the last layer as logits, or as features of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transparity_flax.precision import upcast

if TYPE_CHECKING:
    from transparity_flax.transformer import Transformer


def head(
    model: Transformer, x: Float[Array, "batch length embed_dim"]
) -> Float[Array, "batch length vocab"] | Float[Array, "batch length embed_dim"] | Float[Array, "batch embed_dim"]:
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4), or what else `config.head` names."""
    config = model.config
    if config.head == "hidden":
        return x
    if config.head == "pooled":
        return jnp.tanh(model.pooler(x[:, 0]))
    if config.head_scale == "embed_dim":
        x = x * config.embed_dim**-0.5
    logits = _tied(model, x) if config.tied_head else model.head(x)
    return logits if config.final_softcap is None else capped(logits, config.final_softcap)


def capped(x: Float[Array, "*batch"], cap: float) -> Float[Array, "*batch"]:
    """cap · tanh(x / cap): nearly x where that is small, and never beyond ± cap (Gemma 2)."""
    return (jnp.tanh(upcast(x) / cap) * cap).astype(x.dtype)


def _tied(model: Transformer, x: Float[Array, "batch length embed_dim"]) -> Float[Array, "batch length vocab"]:
    """The head that multiplies by the token embeddings (Press and Wolf 2017); its bias is its own."""
    logits = x @ model.token_embedding.embedding[...].T
    return logits if model.head.bias is None else logits + model.head.bias[...]
