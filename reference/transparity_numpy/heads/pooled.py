"""The pooled state: one state per row, and the pooler after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.activations import ACTIVATIONS
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.shapes import Hidden, Parameters, PooledState, TokenIds

POOLERS: dict[str, Callable[[Array], Array]] = {
    "tanh": np.tanh,
    "relu": ACTIVATIONS["relu"],
    "gelu": ACTIVATIONS["gelu"],
}
"""The activation functions after the linear map of the pooled state."""


def pool(
    config: TransformerConfig, x: Hidden, is_token: Bool[Array, "batch length"], tokens: TokenIds | None
) -> PooledState:
    """Return one state per row, chosen by `config.pooling`.

    `first` is the first position (Devlin et al. 2019). `mean` averages the tokens that are not padding (Reimers and
    Gurevych 2019, §3); `last` is the last such token. `eos` is the first `eos_id`, `largest` the largest token id
    (Radford et al. 2021, §2.4). If all tokens of a row are padding, `mean` is 0 and `last` is the first position. If a
    row has no `eos_id`, `eos` is the first position."""
    if config.pooling == "mean":
        count = np.maximum(is_token.sum(axis=1, keepdims=True), 1).astype(x.dtype)
        return (x * is_token[:, :, None]).sum(axis=1) / count
    if config.pooling == "first":
        return x[:, 0]
    rank = np.arange(x.shape[1]) * is_token
    if config.pooling != "last":
        assert tokens is not None  # images have no tokens
        rank = tokens if config.pooling == "largest" else (tokens == config.ending_id).astype(int)
    return x[np.arange(len(x)), rank.argmax(axis=1)]


def pooled(config: TransformerConfig, parameters: Parameters, x: PooledState) -> PooledState:
    """activation(x Wᵀ + b) if there is a pooler, else x, where x is the pooled state."""
    return POOLERS[config.pooler](linear(parameters["pooler"], x)) if config.has_pooler else x
