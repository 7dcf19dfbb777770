"""The gain of a norm, the factor of the normalized values."""

from __future__ import annotations

import torch
from torch import nn

from transparity.config import TransformerConfig
from transparity_pytorch.shapes import Weight


def gain(config: TransformerConfig, weight: Weight) -> Weight:
    """Return the weight, or 1 + the weight (Gemma)."""
    return weight if config.norm_gain == "weight" else 1 + weight


def initial_gain(config: TransformerConfig, features: int) -> nn.Parameter:
    """Return the initial weight of a norm, with which its gain is 1."""
    return nn.Parameter(torch.full((features,), float(config.norm_gain == "weight")))
