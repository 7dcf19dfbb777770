"""Logits of classes from the pooled state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.heads.pooled import pooled
from transparity_numpy.heads.transform import transform_for_head


def classes(
    config: TransformerConfig, parameters: Mapping[str, Any], x: Inexact[Array, "batch embed_dim"]
) -> Inexact[Array, "batch classes"]:
    """x Wᵀ + b, where x is the pooled state, after the pooler if there is one."""
    return linear(parameters["head"], transform_for_head(config, parameters, pooled(config, parameters, x)))
