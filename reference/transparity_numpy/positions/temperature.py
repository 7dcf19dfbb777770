"""The query temperature: a factor of the queries that grows with the position (Llama 4, Ministral 3)."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity_numpy.shapes import Positions


def query_temperature(
    config: TransformerConfig, positions: Positions, dtype: DTypeLike
) -> Float[Array, "#batch 1 queries 1"] | None:
    """1 + temperature · ln(1 + ⌊(position + first) / length⌋), in float64; None if it is 1 everywhere."""
    if not config.query_temperature:
        return None
    pieces = (positions + config.query_temperature_first) // config.query_temperature_length
    return (1 + config.query_temperature * np.log1p(pieces)).astype(dtype)[:, None, :, None]
