"""Tokens and positions as vectors."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from transparity.config import TransformerConfig
from transparity.inputs import check_length


def sinusoidal_positions(
    length: int, embed_dim: int, device: torch.device | str | None = None
) -> Float64[Tensor, "length embed_dim"]:
    """sin(position / 10000^(i / embed_dim)) at even features i, the cosine of the same angle beside it (document 003;
    Vaswani et al. 2017, §3.5). Computed in float64, whatever the model's dtype: float32 angles lose digits."""
    positions = torch.arange(length, dtype=torch.float64, device=device)[:, None]
    features = torch.arange(0, embed_dim, 2, dtype=torch.float64, device=device)
    angles = positions / 10_000.0 ** (features / embed_dim)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(length, embed_dim)


def embed(
    config: TransformerConfig,
    token_embedding: nn.Embedding,
    position_embedding: nn.Embedding | None,
    tokens: Int[Tensor, "batch length"],
    positions: Int[Tensor, "batch length"] | None = None,
) -> Float[Tensor, "batch length embed_dim"]:
    """The embeddings of the tokens plus those of their `positions`: 0, 1 … if none are given. They are learned if there
    is an embedding of them."""
    length = tokens.shape[1]
    check_length(config, length)
    at, reach = (slice(length), length) if positions is None else (positions, config.max_length)
    x: Tensor = token_embedding(tokens)
    if config.embedding_scale == "embed_dim":
        x = x * math.sqrt(config.embed_dim)
    if position_embedding is not None:
        return x + position_embedding.weight[at]
    return x + sinusoidal_positions(reach, config.embed_dim, tokens.device).to(x.dtype)[at]
