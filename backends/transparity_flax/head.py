"""The head: logits, hidden states or a pooled state from the last layer's output."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.arithmetic.softcap import apply_softcap
from transparity_flax.feed_forward import ACTIVATIONS
from transparity_flax.normalization import Norm


def transform_for_head(
    config: TransformerConfig, linear: nnx.Linear, norm: Norm, x: Float[Array, "batch length embed_dim"]
) -> Float[Array, "batch length embed_dim"]:
    """norm(activation(x Wᵀ + b)), in front of a head (Devlin et al. 2019, §3.1, and their code)."""
    return norm(ACTIVATIONS[config.activation](linear(x)))


def head(
    config: TransformerConfig,
    linear: nnx.Linear | None,
    x: Float[Array, "batch length embed_dim"],
    table: Float[Array, "vocab embed_dim"] | None,
) -> Float[Array, "batch length vocab"] | Float[Array, "batch length embed_dim"] | Float[Array, "batch embed_dim"]:
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4), or the output that `config.head` names. `linear` is the
    head's or the pooler's, None for hidden states; `table` are the token embeddings, for a tied head."""
    if linear is None:
        return x
    if config.head == "pooled":
        return jnp.tanh(linear(x[:, 0]))
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
