"""A head whose weight is the table of token embeddings."""

from __future__ import annotations

from typing import Any

from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.shapes import Vectors


def tied_logits(config: TransformerConfig, model: Any, x: Vectors) -> Float[Array, "*batch vocab"]:
    """x Eᵀ + b, where E is the last stack's table of token embeddings; the bias is the head's own."""
    y = x @ model.reader(config.stacks[-1]).token_embedding.embedding[...].T
    return y if model.head.bias is None else y + model.head.bias[...]
