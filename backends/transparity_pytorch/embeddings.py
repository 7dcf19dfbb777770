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


def embed(
    config: TransformerConfig,
    tables: Mapping[str, nn.Embedding],
    tokens: Int[Tensor, "batch length"],
    positions: Int[Tensor, "#batch length"],
    visible: Bool[Tensor, "batch keys"],
    token_types: Int[Tensor, "batch length"] | None = None,
) -> Float[Tensor, "batch length embed_dim"]:
    """Sum of the embeddings of the tokens, their types and their positions, each if configured.

    Args:
        tables: Those of the stack, by name.
        positions: Positions of the tokens, below `visible.shape[1]`.
        visible: True for tokens that are not padding, among all up to the last position.
    """
    check_length(config, tokens.shape[1])
    x: Tensor = tables["token_embedding"](tokens)
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
