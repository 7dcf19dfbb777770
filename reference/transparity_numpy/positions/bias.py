"""The bias of the scores by distance, for relative positions and ALiBi."""

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
    """Return the bias of the scores of queries at `positions` and keys at 0 … `keys` − 1; None if there is no bias.

    With `both`, queries also see later keys. `parameters` has the parameters of the stack.
    """
    if config.has_relative_bias:
        return relative_bias(config, parameters["relative_bias"], positions, keys, both=both)
    return alibi_bias(config, positions, keys, dtype) if config.positions == "alibi" else None
