"""The bias of the scores by distance, if the configuration has one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxtyping import Inexact
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity_numpy.positions.alibi import alibi_bias
from transparity_numpy.positions.relative import relative_bias
from transparity_numpy.shapes import Positions


def score_bias(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    positions: Positions,
    keys: int,
    dtype: DTypeLike,
    *,
    both: bool,
) -> Inexact[Array, "#batch heads queries keys"] | None:
    """Bias that is added to the scores of `positions` and 0 … `keys` − 1; None for other positions. With
    `both`, queries see later keys too. `parameters` belong to the stack."""
    if config.has_relative_bias:
        return relative_bias(config, parameters["relative_bias"], positions, keys, both=both)
    return alibi_bias(config, positions, keys, dtype) if config.positions == "alibi" else None
