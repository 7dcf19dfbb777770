"""The gain of a norm."""

from __future__ import annotations

import torch
from torch import nn

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import Weight


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """The weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nn.Parameter:
    """The weight of a norm whose gain is 1."""
    return nn.Parameter(torch.full((features,), float(config.norm_gain == "weight")))
