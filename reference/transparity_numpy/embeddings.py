"""Tokens and positions as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Inexact, Int
from numpy import ndarray as Array

from transparity.config import RopeLayout, TransformerConfig
from transparity.inputs import check_length
from transparity_numpy.arithmetic.functional import linear


def sinusoidal_positions(
    length: int, embed_dim: int, base: float = 10_000.0, layout: RopeLayout = "interleaved"
) -> Float64[Array, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i and the cosine of the same angle next to it (document
    003; Vaswani et al. 2017, §3.5), or all sines and then all cosines (`halves`, Marian). Computed in float64:
    float32 angles lose digits."""
    angles = np.arange(length)[:, None] / base ** (np.arange(0, embed_dim, 2) / embed_dim)
    both = [np.sin(angles), np.cos(angles)]
    if layout == "halves":
        return np.concatenate(both, axis=-1)
    return np.stack(both, axis=-1).reshape(length, embed_dim)


def position_ids(
    config: TransformerConfig, visible: Bool[Array, "batch keys"], positions: Int[Array, "#batch length"]
) -> Int[Array, "#batch length"]:
    """Rows of the position table for the tokens at `positions`. With `position_count` "visible", only visible tokens
    are counted and padding has the row before the first (RoBERTa, OPT)."""
    if config.position_count == "all":
        return positions + config.position_offset
    positions = np.broadcast_to(positions, (len(visible), positions.shape[1]))
    counted = np.where(visible, np.cumsum(visible, axis=1), 0)
    return np.take_along_axis(counted, positions, axis=1) + config.position_offset - 1


def patches(
    config: TransformerConfig, pixels: Inexact[Array, "batch channels height width"]
) -> Inexact[Array, "batch patches patch_dim"]:
    """Square patches of images, row by row, each channel by channel and again row by row, as a convolution reads them
    whose stride is the size of its kernel."""
    size, (batch, channels, height, width) = config.patch_size or 1, pixels.shape
    cut = pixels.reshape(batch, channels, height // size, size, width // size, size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


def embed_patches(
    config: TransformerConfig, parameters: Mapping[str, Any], pixels: Inexact[Array, "batch channels height width"]
) -> Inexact[Array, "batch length embed_dim"]:
    """A linear map of each patch, behind the class token if there is one (Dosovitskiy et al. 2021, eq. 1)."""
    dtype = parameters["patch_projection"]["weight"].dtype
    x = linear(parameters["patch_projection"], patches(config, pixels.astype(dtype)))
    if not config.class_token:
        return x
    first = np.broadcast_to(parameters["class_embedding"]["weight"], (len(x), 1, config.embed_dim))
    return np.concatenate([first, x], axis=1)


def embed(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Int[Array, "batch length"] | Inexact[Array, "batch channels height width"],
    positions: Int[Array, "#batch length"],
    visible: Bool[Array, "batch keys"],
    token_types: Int[Array, "batch length"] | None = None,
) -> Inexact[Array, "batch length embed_dim"]:
    """Sum of the embeddings of the tokens or patches, their types and their positions, each if configured.

    Args:
        parameters: Those of the stack.
        positions: Positions of the tokens, below `visible.shape[1]`.
        visible: True for tokens that are not padding, among all up to the last position.
    """
    check_length(config, positions.shape[1])
    if config.reads_pixels:
        x = embed_patches(config, parameters, tokens)
    else:
        x = parameters["token_embedding"]["weight"][tokens]
    if config.token_scale != 1:
        x = x * x.dtype.type(config.token_scale)
    if token_types is not None:
        x = x + parameters["token_type_embedding"]["weight"][token_types]
    if config.positions == "learned":
        return x + parameters["position_embedding"]["weight"][position_ids(config, visible, positions)]
    if config.positions == "sinusoidal":
        table = sinusoidal_positions(visible.shape[1], config.embed_dim, config.rope_theta, config.rope_layout)
        return x + table.astype(x.dtype)[positions]
    return x
