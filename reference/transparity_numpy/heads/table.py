"""The table of heads: each head has a file in this folder, and a row here."""

from __future__ import annotations

from collections.abc import Callable

from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.heads.logits import logits
from transparity_numpy.heads.pooled import classes, pooled
from transparity_numpy.shapes import Features, Parameters, Vectors


def hidden(config: TransformerConfig, parameters: Parameters, x: Vectors) -> Vectors:
    """Return the last layer's output unchanged."""
    return x


HEADS: dict[str, Callable[..., Array]] = {"logits": logits, "hidden": hidden, "pooled": pooled, "classes": classes}
"""The function for each `config.head`."""


def head(config: TransformerConfig, parameters: Parameters, x: Vectors) -> Features:
    """Return the output that `config.head` names; `x` is the pooled state if `config.is_pooled`.

    `parameters` has the parameters of the whole model.
    """
    return HEADS[config.head](config, parameters, x)
