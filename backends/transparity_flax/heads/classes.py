"""Logits of classes from the pooled state."""

from __future__ import annotations

from typing import Any

from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.heads.pooled import pooled
from transparity_flax.heads.transform import transform_for_head


def classes(config: TransformerConfig, model: Any, x: Float[Array, "batch embed_dim"]) -> Float[Array, "batch classes"]:
    """x Wᵀ + b, where x is the pooled state, after the pooler if there is one."""
    return model.head(transform_for_head(config, model, pooled(config, model, x)))
