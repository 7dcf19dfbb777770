"""The linear map, activation and norm before a head."""

from __future__ import annotations

from typing import Any

from torch import nn

from transparity.config import TransformerConfig
from transparity_pytorch.feed_forward import ACTIVATIONS
from transparity_pytorch.norms.table import Norm
from transparity_pytorch.shapes import Vectors


def transform_parts(config: TransformerConfig) -> dict[str, nn.Module]:
    """Return the modules of `transform_for_head`: a linear map and a norm, or nothing without `head_transform`."""
    if not config.head_transform:
        return {}
    linear = nn.Linear(config.embed_dim, config.embed_dim, bias=config.head_transform_bias)
    return {"head_transform": linear, "head_norm": Norm(config)}


def transform_for_head(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    """norm(activation(x Wᵀ + b)) (Devlin et al. 2019, §3.1, and their code); without `head_transform`, x."""
    if not config.head_transform:
        return x
    return model.head_norm(ACTIVATIONS[config.activation](model.head_transform(x)))
