"""Tokens and positions as vectors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Inexact, Int
from numpy import ndarray as Array

from transparity.config import RopeLayout, TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(
    length: int, embed_dim: int, base: float = 10_000.0, pairs: RopeLayout = "interleaved"
) -> Float64[Array, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i, the cosine of the same angle beside it (document 003;
    Vaswani et al. 2017, §3.5), or all sines and then all cosines (Marian). Computed in float64, whatever the model's
    dtype: float32 angles lose digits."""
    angles = np.arange(length)[:, None] / base ** (np.arange(0, embed_dim, 2) / embed_dim)
    both = [np.sin(angles), np.cos(angles)]
    if pairs == "halves":
        return np.concatenate(both, axis=-1)
    return np.stack(both, axis=-1).reshape(length, embed_dim)


def position_ids(
    config: TransformerConfig, visible: Bool[Array, "batch keys"], positions: Int[Array, "#batch length"]
) -> Int[Array, "#batch length"]:
    """The learned positions of the tokens that stand at `positions`: those, or only what is `visible` is counted, and
    what is not is in front of the first (RoBERTa)."""
    if config.position_count == "all":
        return positions + config.position_offset
    positions = np.broadcast_to(positions, (len(visible), positions.shape[1]))
    counted = np.where(visible, np.cumsum(visible, axis=1), 0)
    return np.take_along_axis(counted, positions, axis=1) + config.position_offset - 1


def embed(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Int[Array, "batch length"],
    visible: Bool[Array, "batch keys"],
    positions: Int[Array, "batch length"] | None = None,
    token_types: Int[Array, "batch length"] | None = None,
) -> Inexact[Array, "batch length embed_dim"]:
    """The embeddings of the tokens, of their types if there are such, and of their `positions`: 0, 1 … if none are
    given; what is `visible` of all there is may be what they count. `parameters` are a stack's."""
    length = tokens.shape[1]
    check_length(config, length)
    at = np.arange(length)[None] if positions is None else positions
    x = parameters["token_embedding"]["weight"][tokens]
    if config.embedding_scale == "embed_dim":
        x = x * x.dtype.type(math.sqrt(config.embed_dim))
    if token_types is not None:
        x = x + parameters["token_type_embedding"]["weight"][token_types]
    if config.positions == "learned":
        return x + parameters["position_embedding"]["weight"][position_ids(config, visible, at)]
    if config.positions == "sinusoidal":
        table = sinusoidal_positions(visible.shape[1], config.embed_dim, config.rope_theta, config.rope_layout)
        return x + table.astype(x.dtype)[at]
    return x
