"""The logits of classes: a linear map of the pooled state."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.heads.logits import transform_for_head
from transparity_pytorch.heads.pooled import pooled
from transparity_pytorch.shapes import PooledState


def classes(config: TransformerConfig, model: Any, x: PooledState) -> Float[Tensor, "batch classes"]:
    """x Wᵀ + b, where x is the pooled state, after the pooler if there is one."""
    x = pooled(config, model, x)
    return model.head(transform_for_head(config, model, x) if config.head_transform else x)
