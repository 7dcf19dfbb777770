"""The linear map, activation and norm before a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.feed_forward import ACTIVATIONS
from transparity_numpy.norms.table import norm
from transparity_numpy.shapes import Vectors


def transform_for_head(config: TransformerConfig, parameters: Mapping[str, Any], x: Vectors) -> Vectors:
    """norm(activation(x Wᵀ + b)) (Devlin et al. 2019, §3.1, and their code); without `head_transform`, x."""
    if not config.head_transform:
        return x
    y = ACTIVATIONS[config.activation](linear(parameters["head_transform"], x))
    return norm(config, parameters["head_norm"], y)
