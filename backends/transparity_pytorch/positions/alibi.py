"""ALiBi (Press et al. 2022): scores fall linearly with distance, with a different slope per head."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.positions.relative import distances
from transparity_pytorch.shapes import Positions


def alibi_slopes(num_heads: int, device: torch.device | str | None = None) -> Float64[Tensor, " heads"]:
    """Return the slope of each head (Press et al. 2022, §3, and their code).

    If `num_heads` is a power of two, the slopes are 2^(−8 i / heads) for i = 1 … heads. Otherwise they are the slopes
    for the next lower power of two, then every other slope for the next higher one.
    """
    below = 2 ** int(math.log2(num_heads))
    steps = torch.arange(1, below + 1, dtype=torch.float64, device=device)
    slopes = 2.0 ** (-8 / below * steps)
    between = 2.0 ** (-4 / below * (2 * steps[: num_heads - below] - 1))
    return torch.cat([slopes, between])


def alibi_bias(
    config: TransformerConfig, positions: Positions, keys: int, dtype: torch.dtype
) -> Float[Tensor, "#batch heads queries keys"]:
    """−slope · |key − query|."""
    slopes = alibi_slopes(config.num_heads, positions.device).to(dtype)
    return -slopes[:, None, None] * distances(positions, keys).abs().to(dtype)[:, None]
