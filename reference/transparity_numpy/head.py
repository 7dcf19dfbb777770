"""The head: logits, hidden states, a pooled state or its classes from the last layer's output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Inexact, Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.arithmetic.softcap import apply_softcap
from transparity_numpy.feed_forward import ACTIVATIONS
from transparity_numpy.normalization import norm


def transform_for_head(
    config: TransformerConfig, parameters: Mapping[str, Any], x: Inexact[Array, "*batch embed_dim"]
) -> Inexact[Array, "*batch embed_dim"]:
    """norm(activation(x Wᵀ + b)), in front of a head (Devlin et al. 2019, §3.1, and their code)."""
    return norm(
        config, parameters["head_norm"], ACTIVATIONS[config.activation](linear(parameters["head_transform"], x))
    )


POOLERS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": ACTIVATIONS["relu"],
    "gelu": ACTIVATIONS["gelu"],
}
"""Activations behind the linear map of a pooled state."""


def pool(
    config: TransformerConfig,
    x: Inexact[Array, "batch length embed_dim"],
    is_token: Bool[Array, "batch length"],
    tokens: Int[Array, "batch length"] | None,
) -> Inexact[Array, "batch embed_dim"]:
    """One state of each row: the first position (Devlin et al. 2019), the mean of the visible ones (Reimers and
    Gurevych 2019, §3), the last of them, or the first `eos_id` or largest token (Radford et al. 2021, §2.4); in a row
    without any, these are the first position, and the mean 0."""
    if config.pooling == "mean":
        count = np.maximum(is_token.sum(axis=1, keepdims=True), 1).astype(x.dtype)
        return (x * is_token[:, :, None]).sum(axis=1) / count
    if config.pooling == "first":
        return x[:, 0]
    rank = np.arange(x.shape[1]) * is_token
    if config.pooling != "last":
        assert tokens is not None  # images are not pooled by tokens
        eos = -1 if config.eos_id is None else config.eos_id
        rank = tokens if config.pooling == "largest" else (tokens == eos).astype(int)
    return x[np.arange(len(x)), rank.argmax(axis=1)]


def pooled_head(
    config: TransformerConfig, parameters: Mapping[str, Any], x: Inexact[Array, "batch embed_dim"]
) -> Inexact[Array, "batch classes"] | Inexact[Array, "batch embed_dim"]:
    """The pooled state through the pooler, if there is one, and for `classes` a linear map to them."""
    if config.has_pooler:
        x = POOLERS[config.pooler](linear(parameters["pooler"], x))
    if config.head == "pooled":
        return x
    if config.head_transform:
        x = transform_for_head(config, parameters, x)
    return linear(parameters["head"], x)


def head(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch length embed_dim"] | Inexact[Array, "batch embed_dim"],
    out: Inexact[Array, "batch length vocab"] | Inexact[Array, "batch features"] | None = None,
) -> Inexact[Array, "batch length vocab"] | Inexact[Array, "batch length embed_dim"] | Inexact[Array, "batch features"]:
    """Logits over the vocabulary (Vaswani et al. 2017, §3.4), or the output that `config.head` names; of a pooled state
    where `config.is_pooled`. `parameters` are those of the whole model."""
    if config.head == "hidden":
        return x
    if config.is_pooled:
        return pooled_head(config, parameters, x)
    if config.head_transform:
        x = transform_for_head(config, parameters, x)
    if config.head_input_scale != 1:
        x = x * x.dtype.type(config.head_input_scale)
    weight = parameters[config.stacks[-1]]["token_embedding"] if config.has_tied_head else {}
    logits = linear(parameters.get("head", {}) | weight, x, out)
    return logits if config.final_softcap is None else apply_softcap(logits, config.final_softcap)
