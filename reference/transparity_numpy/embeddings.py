"""Tokens and positions as vectors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Inexact, Int
from numpy import ndarray as Array

from transparity.config import RopeLayout, Timescales, TransformerConfig
from transparity.inputs import check_length
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.feed_forward import ACTIVATIONS

Source = (
    Int[Array, "batch length"] | Inexact[Array, "batch channels height width"] | Inexact[Array, "batch mel_bins frames"]
)
"""What a stack reads: tokens, or the images or the audio of an encoder."""


def sinusoidal_positions(
    length: int,
    embed_dim: int,
    base: float = 10_000.0,
    layout: RopeLayout = "interleaved",
    timescales: Timescales = "exclusive",
) -> Float64[Array, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i and the cosine of the same angle next to it (document
    003; Vaswani et al. 2017, §3.5), or all sines and then all cosines (`halves`, Marian). With `inclusive` timescales
    the last is `base` (Whisper). Computed in float64: float32 angles lose digits."""
    steps = embed_dim if timescales == "exclusive" else embed_dim - 2
    angles = np.arange(length)[:, None] / base ** (np.arange(0, embed_dim, 2) / steps)
    both = [np.sin(angles), np.cos(angles)]
    if layout == "halves":
        return np.concatenate(both, axis=-1)
    return np.stack(both, axis=-1).reshape(length, embed_dim)


def position_ids(
    config: TransformerConfig, is_token: Bool[Array, "batch keys"], positions: Int[Array, "#batch length"]
) -> Int[Array, "#batch length"]:
    """Rows of the position table for the tokens at `positions`. With `position_count` "visible", only visible tokens
    are counted and padding has the row before the first (RoBERTa, OPT)."""
    if config.position_count == "all":
        return positions + config.position_offset
    positions = np.broadcast_to(positions, (len(is_token), positions.shape[1]))
    counted = np.where(is_token, np.cumsum(is_token, axis=1), 0)
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


def convolved(
    parameters: Mapping[str, Array], x: Inexact[Array, "batch frames features_in"], stride: int
) -> Inexact[Array, "batch length features_out"]:
    """GELU of a convolution over time of width 3, with a frame of zeros at either end: a linear map of each three
    neighbours, feature by feature, as the kernel (features_out, features_in, 3) is laid out."""
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    neighbours = np.stack([padded[:, i : i + x.shape[1] : stride] for i in range(3)], axis=-1)
    return ACTIVATIONS["gelu"](linear(parameters, neighbours.reshape(*neighbours.shape[:2], -1)))


def embed_frames(
    parameters: Mapping[str, Any], frames: Inexact[Array, "batch mel_bins frames"], tap: Tap = identity
) -> Inexact[Array, "batch length embed_dim"]:
    """Two convolutions over time, the second of which makes one position of two frames (Radford et al. 2022, §2.2)."""
    first, second = parameters["first_convolution"], parameters["second_convolution"]
    x = tap("first_convolution", convolved(first, frames.astype(first["weight"].dtype).swapaxes(1, 2), stride=1))
    return tap("second_convolution", convolved(second, x, stride=2))


def embed(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    tokens: Source,
    positions: Int[Array, "#batch length"],
    is_token: Bool[Array, "batch keys"],
    token_types: Int[Array, "batch length"] | None = None,
    tap: Tap = identity,
) -> Inexact[Array, "batch length embed_dim"]:
    """Sum of the embeddings of the tokens, patches or frames, their types and their positions, each if configured.

    Args:
        config: As the stack sees it.
        parameters: Those of the stack.
        positions: Positions of the tokens, below `is_token.shape[1]`.
        is_token: True for tokens that are not padding, among all up to the last position.
    """
    check_length(config, positions.shape[1])
    if "first_convolution" in parameters:
        x = embed_frames(parameters, tokens, tap)
    elif config.reads_pixels:
        x = embed_patches(config, parameters, tokens)
    else:
        x = parameters["token_embedding"]["weight"][tokens]
    if config.token_scale != 1:
        x = x * x.dtype.type(config.token_scale)
    if token_types is not None:
        x = x + parameters["token_type_embedding"]["weight"][token_types]
    if config.positions == "learned":
        return x + parameters["position_embedding"]["weight"][position_ids(config, is_token, positions)]
    if config.positions == "sinusoidal":
        options = (config.embed_dim, config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
        table = sinusoidal_positions(is_token.shape[1], *options)
        return x + table.astype(x.dtype)[positions]
    return x
