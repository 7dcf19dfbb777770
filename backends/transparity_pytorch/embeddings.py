"""Tokens and positions as vectors."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from transparity.config import RopeLayout, TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(
    length: int,
    embed_dim: int,
    base: float = 10_000.0,
    pairs: RopeLayout = "interleaved",
    device: torch.device | str | None = None,
) -> Float64[Tensor, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i, the cosine of the same angle beside it (document 003;
    Vaswani et al. 2017, §3.5), or all sines and then all cosines (Marian). Computed in float64, whatever the model's
    dtype: float32 angles lose digits."""
    positions = torch.arange(length, dtype=torch.float64, device=device)[:, None]
    features = torch.arange(0, embed_dim, 2, dtype=torch.float64, device=device)
    angles = positions / base ** (features / embed_dim)
    both = [angles.sin(), angles.cos()]
    if pairs == "halves":
        return torch.cat(both, dim=-1)
    return torch.stack(both, dim=-1).reshape(length, embed_dim)


def position_ids(
    config: TransformerConfig, visible: Bool[Tensor, "batch keys"], positions: Int[Tensor, "#batch length"]
) -> Int[Tensor, "#batch length"]:
    """The learned positions of the tokens that stand at `positions`: those, or only what is `visible` is counted, and
    what is not is in front of the first (RoBERTa)."""
    if config.position_count == "all":
        return positions + config.position_offset
    positions = positions.expand(len(visible), positions.shape[1])
    counted = visible.cumsum(dim=1) * visible
    return counted.take_along_dim(positions, dim=1) + config.position_offset - 1


def embed(
    config: TransformerConfig,
    token_embedding: nn.Embedding,
    position_embedding: nn.Embedding | None,
    token_type_embedding: nn.Embedding | None,
    tokens: Int[Tensor, "batch length"],
    visible: Bool[Tensor, "batch keys"],
    positions: Int[Tensor, "batch length"] | None = None,
    token_types: Int[Tensor, "batch length"] | None = None,
) -> Float[Tensor, "batch length embed_dim"]:
    """The embeddings of the tokens, of their types if there are such, and of their `positions`: 0, 1 … if none are
    given; what is `visible` of all there is may be what they count. They are learned if there is an embedding."""
    length, device = tokens.shape[1], tokens.device
    check_length(config, length)
    at = torch.arange(length, device=device)[None] if positions is None else positions
    x: Tensor = token_embedding(tokens)
    if config.embedding_scale == "embed_dim":
        x = x * math.sqrt(config.embed_dim)
    if token_type_embedding is not None and token_types is not None:
        x = x + token_type_embedding(token_types)
    if position_embedding is not None:
        return x + position_embedding(position_ids(config, visible, at))
    if config.positions == "sinusoidal":
        of_features = (config.embed_dim, config.rope_theta, config.rope_layout)
        return x + sinusoidal_positions(visible.shape[1], *of_features, device).to(x.dtype)[at]
    return x
