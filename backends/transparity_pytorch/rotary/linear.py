"""The linear scaling of rotary angles: every angle is divided by the same factor."""

from __future__ import annotations

import torch

from transparity.config import TransformerConfig
from transparity_pytorch.rotary.plain import plain_frequencies
from transparity_pytorch.shapes import Frequencies


def linear_frequencies(config: TransformerConfig, device: torch.device | str | None = None) -> Frequencies:
    """frequency / factor."""
    return plain_frequencies(config, device) / config.rotary_factor
