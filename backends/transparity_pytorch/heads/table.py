"""The table of heads: each head has a file in this folder, and a row here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity_pytorch.heads.logits import logits, logits_parts
from transparity_pytorch.heads.pooled import classes, classes_parts, pooled, pooled_parts
from transparity_pytorch.shapes import Features, Vectors


def hidden(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    """Return the last layer's output unchanged."""
    return x


HEADS: dict[str, tuple[Callable[..., dict[str, nn.Module]], Callable[..., Tensor]]] = {
    "logits": (logits_parts, logits),
    "hidden": (lambda config: {}, hidden),
    "pooled": (pooled_parts, pooled),
    "classes": (classes_parts, classes),
}
"""For each `config.head`, the function that makes its modules, and the function that applies them."""


def head_parts(config: TransformerConfig) -> dict[str, nn.Module]:
    """Return the modules of the head that `config.head` names."""
    parts, _ = HEADS[config.head]
    return parts(config)


def head(config: TransformerConfig, model: Any, x: Vectors) -> Features:
    """Return the output that `config.head` names; `x` is the pooled state if `config.is_pooled`."""
    _, function = HEADS[config.head]
    return function(config, model, x)
