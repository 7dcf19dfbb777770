"""Linear scaling of rotary angles (Chen et al. 2023): positions are divided by a factor."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.rotary.plain import plain_frequencies


def linear_frequencies(
    config: TransformerConfig, device: torch.device | str | None = None
) -> Float64[Tensor, " pairs"]:
    """frequency / factor."""
    return plain_frequencies(config, device) / config.rotary_factor
