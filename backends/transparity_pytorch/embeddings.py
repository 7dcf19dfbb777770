"""Tokens and positions as vectors."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from transparity.config import RopeLayout, TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(
    length: int,
    embed_dim: int,
    base: float = 10_000.0,
    layout: RopeLayout = "interleaved",
    device: torch.device | str | None = None,
) -> Float64[Tensor, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i and the cosine of the same angle next to it (document
    003; Vaswani et al. 2017, §3.5), or all sines and then all cosines (`halves`, Marian). Computed in float64:
    float32 angles lose digits."""
    positions = torch.arange(length, dtype=torch.float64, device=device)[:, None]
    features = torch.arange(0, embed_dim, 2, dtype=torch.float64, device=device)
    angles = positions / base ** (features / embed_dim)
    both = [angles.sin(), angles.cos()]
    if layout == "halves":
        return torch.cat(both, dim=-1)
    return torch.stack(both, dim=-1).reshape(length, embed_dim)


def position_ids(
    config: TransformerConfig, visible: Bool[Tensor, "batch keys"], positions: Int[Tensor, "#batch length"]
) -> Int[Tensor, "#batch length"]:
    """Rows of the position table for the tokens at `positions`. With `position_count` "visible", only visible tokens
    are counted and padding has the row before the first (RoBERTa, OPT)."""
    if config.position_count == "all":
        return positions + config.position_offset
    positions = positions.expand(len(visible), positions.shape[1])
    counted = visible.cumsum(dim=1) * visible
    return counted.take_along_dim(positions, dim=1) + config.position_offset - 1


def patches(
    config: TransformerConfig, pixels: Float[Tensor, "batch channels height width"]
) -> Float[Tensor, "batch patches patch_dim"]:
    """Square patches of images, row by row, each channel by channel and again row by row, as a convolution reads them
    whose stride is the size of its kernel."""
    size, (batch, channels, height, width) = config.patch_size or 1, pixels.shape
    cut = pixels.reshape(batch, channels, height // size, size, width // size, size)
    return cut.permute(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


def embed_patches(
    config: TransformerConfig,
    projection: nn.Linear,
    first: nn.Embedding | None,
    pixels: Float[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch length embed_dim"]:
    """A linear map of each patch, behind the class token if there is one (Dosovitskiy et al. 2021, eq. 1)."""
    x: Tensor = projection(patches(config, pixels.to(projection.weight.dtype)))
    return x if first is None else torch.cat([first.weight.expand(len(x), 1, config.embed_dim), x], dim=1)


def embed(
    config: TransformerConfig,
    tables: Mapping[str, nn.Embedding],
    tokens: Int[Tensor, "batch length"] | Float[Tensor, "batch channels height width"],
    positions: Int[Tensor, "#batch length"],
    visible: Bool[Tensor, "batch keys"],
    token_types: Int[Tensor, "batch length"] | None = None,
    projection: nn.Linear | None = None,
) -> Float[Tensor, "batch length embed_dim"]:
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
    else:
        x = tables["token_embedding"](tokens)
    if config.token_scale != 1:
        x = x * config.token_scale
    if token_types is not None:
        x = x + tables["token_type_embedding"](token_types)
    if config.positions == "learned":
        return x + tables["position_embedding"](position_ids(config, visible, positions))
    if config.positions == "sinusoidal":
        features = (config.embed_dim, config.rope_theta, config.rope_layout)
        return x + sinusoidal_positions(visible.shape[1], *features, tokens.device).to(x.dtype)[positions]
    return x
