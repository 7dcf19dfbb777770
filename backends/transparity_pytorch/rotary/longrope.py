"""LongRoPE (Ding et al. 2024): each angle is divided by its own factor, which depends on whether the sequence is
long."""

from __future__ import annotations

import torch

from transparity.config import TransformerConfig
from transparity_pytorch.rotary.plain import plain_frequencies
from transparity_pytorch.shapes import Frequencies


def longrope_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None, *, beyond: bool = False
) -> Frequencies:
    """frequency / factor, with the long factors if the sequence is longer than the original length (`beyond`)."""
    factors = config.rotary_long_factors if beyond else config.rotary_short_factors
    return plain_frequencies(config, device) / torch.tensor(factors, dtype=torch.float64, device=device)
