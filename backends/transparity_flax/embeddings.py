"""Tokens and positions as vectors."""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Bool, Float, Float64, Int

from transparity.config import RopeLayout, TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(
    length: int, embed_dim: int, base: float = 10_000.0, layout: RopeLayout = "interleaved"
) -> Float64[np.ndarray, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i and the cosine of the same angle next to it (document
    003; Vaswani et al. 2017, §3.5), or all sines and then all cosines (`halves`, Marian). Computed in float64, by
    NumPy: float32 angles lose digits."""
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
    positions = jnp.broadcast_to(positions, (len(visible), positions.shape[1]))
    counted = jnp.where(visible, jnp.cumsum(visible, axis=1), 0)
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


def embed(
    config: TransformerConfig,
    tables: Mapping[str, nnx.Embed],
    tokens: Int[Array, "batch length"] | Float[Array, "batch channels height width"],
    positions: Int[Array, "#batch length"],
    visible: Bool[Array, "batch keys"],
    token_types: Int[Array, "batch length"] | None = None,
    projection: nnx.Linear | None = None,
) -> Float[Array, "batch length embed_dim"]:
    """Sum of the embeddings of the tokens or patches, their types and their positions, each if configured.

    Args:
        tables: Those of the stack, by name.
        positions: Positions of the tokens, below `visible.shape[1]`.
        visible: True for tokens that are not padding, among all up to the last position.
        projection: The linear map of patches; None with tokens.
    """
    check_length(config, positions.shape[1])
    if projection is not None:
        x = embed_patches(config, projection, tables.get("class_embedding"), tokens)
    else:  # calling a table would return the dtype that it was created with
        x = tables["token_embedding"].embedding[tokens]
    if config.token_scale != 1:
        x = x * config.token_scale
    if token_types is not None:
        x = x + tables["token_type_embedding"].embedding[token_types]
    if config.positions == "learned":
        return x + tables["position_embedding"].embedding[position_ids(config, visible, positions)]
    if config.positions == "sinusoidal":
        table = sinusoidal_positions(visible.shape[1], config.embed_dim, config.rope_theta, config.rope_layout)
        return x + jnp.asarray(table, x.dtype)[positions]
    return x
