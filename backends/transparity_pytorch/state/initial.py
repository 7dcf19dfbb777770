"""Initial values of parameters."""

from __future__ import annotations

from torch import nn


def initialize(module: nn.Module) -> None:
    """Draw matrices uniformly within Glorot's bound (document 003), and set biases to 0; gains are unchanged."""
    for name, value in module.named_parameters(recurse=False):
        if value.ndim > 1:
            nn.init.xavier_uniform_(value)
        elif name == "bias":
            nn.init.zeros_(value)
