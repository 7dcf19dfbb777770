"""ALiBi (Press et al. 2022): scores fall linearly with distance, with a different slope per head."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float64, Inexact
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from transparity.config import TransformerConfig
from transparity_numpy.positions.relative import distances
from transparity_numpy.shapes import Positions


def alibi_slopes(num_heads: int) -> Float64[Array, " heads"]:
    """Return the slope of each head (Press et al. 2022, §3, and their code).

    If `num_heads` is a power of two, the slopes are 2^(−8 i / heads) for i = 1 … heads. Otherwise they are the slopes
    for the next lower power of two, then every other slope for the next higher one.
    """
    below = 2 ** int(math.log2(num_heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * (num_heads - below) + 1, 2))
    return np.concatenate([slopes, between])


def alibi_bias(
    config: TransformerConfig, positions: Positions, keys: int, dtype: DTypeLike
) -> Inexact[Array, "#batch heads queries keys"]:
    """−slope · |key − query|."""
    slopes = alibi_slopes(config.num_heads).astype(dtype)
    return -slopes[:, None, None] * np.abs(distances(positions, keys)).astype(dtype)[:, None]
