"""The linear map, activation and norm before a head."""

from __future__ import annotations

from typing import Any

from transparity.config import TransformerConfig
from transparity_flax.feed_forward import ACTIVATIONS
from transparity_flax.shapes import Vectors


def transform_for_head(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    """norm(activation(x Wᵀ + b)) (Devlin et al. 2019, §3.1, and their code); without `head_transform`, x."""
    if not config.head_transform:
        return x
    return model.head_norm(ACTIVATIONS[config.activation](model.head_transform(x)))
