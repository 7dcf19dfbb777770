"""Tokens and positions as vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Float64, Inexact, Int
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(length: int, embed_dim: int) -> Float64[Array, "length embed_dim"]:
    """sin(position / 10000^(i / embed_dim)) at even features i, the cosine of the same angle beside it (document 003;
    Vaswani et al. 2017, §3.5). Computed in float64, whatever the model's dtype: float32 angles lose digits."""
    angles = np.arange(length)[:, None] / 10_000.0 ** (np.arange(0, embed_dim, 2) / embed_dim)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, embed_dim)


def embed(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Int[Array, "batch length"],
    positions: Int[Array, "batch length"] | None = None,
) -> Inexact[Array, "batch length embed_dim"]:
    """The embeddings of the tokens plus those of their `positions`: 0, 1 … if none are given. `parameters` are a
    stack's."""
    length = tokens.shape[1]
    check_length(config, length)
    at, reach = (slice(length), length) if positions is None else (positions, config.max_length)
    x = parameters["token_embedding"]["weight"][tokens]
    if config.embedding_scale == "embed_dim":
        x = x * x.dtype.type(math.sqrt(config.embed_dim))
    if config.positions == "learned":
        return x + parameters["position_embedding"]["weight"][at]
    return x + sinusoidal_positions(reach, config.embed_dim).astype(x.dtype)[at]
