"""The logits of classes: a linear map of the pooled state."""

from __future__ import annotations

from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.heads.logits import transform_for_head
from transparity_numpy.heads.pooled import pooled
from transparity_numpy.shapes import Parameters, PooledState


def classes(config: TransformerConfig, parameters: Parameters, x: PooledState) -> Inexact[Array, "batch classes"]:
    """x Wᵀ + b, where x is the pooled state, after the pooler if there is one."""
    x = pooled(config, parameters, x)
    return linear(parameters["head"], transform_for_head(config, parameters, x) if config.head_transform else x)
