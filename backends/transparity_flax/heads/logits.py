"""The outputs for each position: logits (Vaswani et al. 2017, §3.4) or hidden states."""

from __future__ import annotations

from typing import Any

from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.activations import ACTIVATIONS
from transparity_flax.arithmetic.precision import apply_softcap
from transparity_flax.shapes import Vectors


def transform_for_head(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    """norm(activation(x Wᵀ + b)) (Devlin et al. 2019, §3.1, and their code)."""
    return model.head_norm(ACTIVATIONS[config.activation](model.head_transform(x)))


def tied_logits(config: TransformerConfig, model: Any, x: Vectors) -> Float[Array, "*batch vocab"]:
    """x Eᵀ + b, where E is the last stack's table of token embeddings, and b a parameter of the head."""
    y = x @ model.reader(config.stacks[-1]).token_embedding.embedding[...].T
    return y if model.head.bias is None else y + model.head.bias[...]


def logits(config: TransformerConfig, model: Any, x: Vectors) -> Float[Array, "*batch vocab"]:
    """softcap(x Wᵀ + b), where W of a tied head is the table of token embeddings (Press and Wolf 2017)."""
    x = transform_for_head(config, model, x) if config.head_transform else x
    x = x if config.head_input_scale == 1 else x * config.head_input_scale
    y = tied_logits(config, model, x) if config.has_tied_head else model.head(x)
    return y if config.final_softcap is None else apply_softcap(y, config.final_softcap)


def hidden(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    return x
