"""The head: logits, hidden states or a pooled state from the last layer's output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.arithmetic.softcap import apply_softcap
from transparity_numpy.feed_forward import ACTIVATIONS
from transparity_numpy.normalization import norm


def transform_for_head(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch length embed_dim"],
) -> Inexact[Array, "batch length embed_dim"]:
    """norm(activation(x Wᵀ + b)), in front of a head (Devlin et al. 2019, §3.1, and their code)."""
    return norm(
        config, parameters["head_norm"], ACTIVATIONS[config.activation](linear(parameters["head_transform"], x))
    )


def head(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch length embed_dim"],
) -> (
    Inexact[Array, "batch length vocab"] | Inexact[Array, "batch length embed_dim"] | Inexact[Array, "batch embed_dim"]
):
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4), or the output that `config.head` names. `parameters` are
    those of the whole model."""
    if config.head == "hidden":
        return x
    if config.head == "pooled":
        return np.tanh(linear(parameters["pooler"], x[:, 0]))
    if config.head_transform:
        x = transform_for_head(config, parameters, x)
    if config.head_input_scale != 1:
        x = x * x.dtype.type(config.head_input_scale)
    weight = parameters[config.stacks[-1]]["token_embedding"] if config.tied_head else {}
    logits = linear(parameters.get("head", {}) | weight, x)
    return logits if config.final_softcap is None else apply_softcap(logits, config.final_softcap)
