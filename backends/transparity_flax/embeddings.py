"""Tokens and positions as vectors."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Float64, Int

from transparity.config import RopeLayout, Timescales, TransformerConfig
from transparity.inputs import check_length
from transparity.taps import Tap, identity
from transparity_flax.feed_forward import ACTIVATIONS

Source = (
    Int[Array, "batch length"] | Float[Array, "batch channels height width"] | Float[Array, "batch mel_bins frames"]
)
"""What a stack reads: tokens, or the images or the audio of an encoder."""


def sinusoidal_positions(
    length: int,
    embed_dim: int,
    base: float = 10_000.0,
    layout: RopeLayout = "interleaved",
    timescales: Timescales = "exclusive",
) -> Float64[np.ndarray, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i and the cosine of the same angle next to it (document
    003; Vaswani et al. 2017, §3.5), or all sines and then all cosines (`halves`, Marian). With `inclusive` timescales
    the last is `base` (Whisper). Computed in float64, by
    NumPy: float32 angles lose digits."""
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
    positions = jnp.broadcast_to(positions, (len(is_token), positions.shape[1]))
    counted = jnp.where(is_token, jnp.cumsum(is_token, axis=1), 0)
    return jnp.take_along_axis(counted, positions, axis=1) + config.position_offset - 1


def patches(
    config: TransformerConfig, pixels: Float[Array, "batch channels height width"]
) -> Float[Array, "batch patches patch_dim"]:
    """Square patches of images, row by row, each channel by channel and again row by row, as a convolution reads them
    whose stride is the size of its kernel."""
    size, (batch, channels, height, width) = config.patch_size or 1, pixels.shape
    cut = pixels.reshape(batch, channels, height // size, size, width // size, size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


def embed_patches(
    config: TransformerConfig,
    projection: nnx.Linear,
    first: nnx.Embed | None,
    pixels: Float[Array, "batch channels height width"],
) -> Float[Array, "batch length embed_dim"]:
    """A linear map of each patch, behind the class token if there is one (Dosovitskiy et al. 2021, eq. 1)."""
    x = projection(patches(config, pixels.astype(projection.kernel.dtype)))
    if first is None:
        return x
    return jnp.concatenate([jnp.broadcast_to(first.embedding[...], (len(x), 1, config.embed_dim)), x], axis=1)


def convolved(
    projection: nnx.Linear, x: Float[Array, "batch frames features_in"], stride: int
) -> Float[Array, "batch length features_out"]:
    """GELU of a convolution over time of width 3, with a frame of zeros at either end: a linear map of each three
    neighbours, feature by feature, as the kernel (features_out, features_in, 3) is laid out."""
    padded = jnp.pad(x, ((0, 0), (1, 1), (0, 0)))
    neighbours = jnp.stack([padded[:, i : i + x.shape[1] : stride] for i in range(3)], axis=-1)
    return ACTIVATIONS["gelu"](projection(neighbours.reshape(*neighbours.shape[:2], -1)))


def embed_frames(
    projections: Mapping[str, nnx.Linear], frames: Float[Array, "batch mel_bins frames"], tap: Tap = identity
) -> Float[Array, "batch length embed_dim"]:
    """Two convolutions over time, the second of which makes one position of two frames (Radford et al. 2022, §2.2)."""
    first, second = projections["first_convolution"], projections["second_convolution"]
    x = tap("first_convolution", convolved(first, frames.astype(first.kernel.dtype).swapaxes(1, 2), stride=1))
    return tap("second_convolution", convolved(second, x, stride=2))


def embed(
    config: TransformerConfig,
    tables: Mapping[str, nnx.Embed],
    tokens: Source,
    positions: Int[Array, "#batch length"],
    is_token: Bool[Array, "batch keys"],
    token_types: Int[Array, "batch length"] | None = None,
    projections: Mapping[str, nnx.Linear] | None = None,
    tap: Tap = identity,
) -> Float[Array, "batch length embed_dim"]:
    """Sum of the embeddings of the tokens, patches or frames, their types and their positions, each if configured.

    Args:
        config: As the stack sees it.
        tables: Those of the stack, by name.
        positions: Positions of the tokens, below `is_token.shape[1]`.
        is_token: True for tokens that are not padding, among all up to the last position.
        projections: The linear maps of patches or of frames, by name; None with tokens.
    """
    check_length(config, positions.shape[1])
    if projections and config.reads_frames:
        x = embed_frames(projections, tokens, tap)
    elif projections:
        x = embed_patches(config, projections["patch_projection"], tables.get("class_embedding"), tokens)
    else:  # calling a table would return the dtype that it was created with
        x = tables["token_embedding"].embedding[tokens]
    if config.token_scale != 1:
        x = x * config.token_scale
    if token_types is not None:
        x = x + tables["token_type_embedding"].embedding[token_types]
    if config.positions == "learned":
        return x + tables["position_embedding"].embedding[position_ids(config, is_token, positions)]
    if config.positions == "sinusoidal":
        options = (config.embed_dim, config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
        table = sinusoidal_positions(is_token.shape[1], *options)
        return x + jnp.asarray(table, x.dtype)[positions]
    return x
