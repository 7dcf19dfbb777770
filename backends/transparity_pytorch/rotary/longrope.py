"""LongRoPE (Ding et al. 2024): each rotary angle has its own factor, and another factor in long sequences."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.rotary.plain import plain_frequencies


def longrope_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None, *, beyond: bool = False
) -> Float64[Tensor, " pairs"]:
    """frequency / factor, with the long factors if the sequence is longer than the original length (`beyond`)."""
    factors = config.rotary_long_factors if beyond else config.rotary_short_factors
    return plain_frequencies(config, device) / torch.tensor(factors, dtype=torch.float64, device=device)
