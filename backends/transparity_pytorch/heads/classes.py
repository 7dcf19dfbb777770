"""Logits of classes from the pooled state."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.heads.pooled import pooled, pooled_parts
from transparity_pytorch.heads.transform import transform_for_head, transform_parts


def classes_parts(config: TransformerConfig) -> dict[str, nn.Module]:
    """Return the modules of `classes`: a linear map, and the pooler before it."""
    head = nn.Linear(config.embed_dim, config.head_size, bias=config.head_bias)
    return pooled_parts(config) | transform_parts(config) | {"head": head}


def classes(
    config: TransformerConfig, model: Any, x: Float[Tensor, "batch embed_dim"]
) -> Float[Tensor, "batch classes"]:
    """x Wᵀ + b, where x is the pooled state, after the pooler if there is one."""
    return model.head(transform_for_head(config, model, pooled(config, model, x)))
