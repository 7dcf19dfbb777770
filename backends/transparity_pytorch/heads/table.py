"""The table of heads: each head has a file in this folder, and a row here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from transparity.config import TransformerConfig
from transparity_pytorch.heads.logits import logits
from transparity_pytorch.heads.pooled import classes, pooled
from transparity_pytorch.shapes import Features, Vectors


def hidden(config: TransformerConfig, model: Any, x: Vectors) -> Vectors:
    """Return the last layer's output unchanged."""
    return x


HEADS: dict[str, Callable[..., Tensor]] = {"logits": logits, "hidden": hidden, "pooled": pooled, "classes": classes}
"""The function for each `config.head`."""


def head(config: TransformerConfig, model: Any, x: Vectors) -> Features:
    """Return the output that `config.head` names; `x` is the pooled state if `config.is_pooled`."""
    return HEADS[config.head](config, model, x)
