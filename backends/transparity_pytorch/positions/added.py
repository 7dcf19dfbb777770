"""Positions that are added to the embeddings: rows of a learned table, or sinusoidal."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from transparity.config import RopeLayout, Timescales, TransformerConfig
from transparity_pytorch.shapes import IsToken


def position_ids(
    config: TransformerConfig, is_token: IsToken, positions: Int[Tensor, "#batch length"]
) -> Int[Tensor, "#batch length"]:
    """Return the row of the position table for each token at `positions`.

    With `position_count` "visible", padding does not count. It gets the row before the first token's row (RoBERTa,
    OPT).
    """
    if config.position_count == "all":
        return positions + config.position_offset
    positions = positions.expand(len(is_token), positions.shape[1])
    counted = is_token.cumsum(dim=1) * is_token
    return counted.take_along_dim(positions, dim=1) + config.position_offset - 1


def sinusoidal_positions(
    length: int,
    embed_dim: int,
    base: float = 10_000.0,
    layout: RopeLayout = "interleaved",
    timescales: Timescales = "exclusive",
    device: torch.device | str | None = None,
) -> Float64[Tensor, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i, and the cosine of the same angle at i + 1.

    The formula is from document 003 and Vaswani et al. 2017, §3.5. With `halves`, all sines precede all cosines
    (Marian). With `inclusive` timescales, the last timescale is `base` (Whisper). Angles are computed in float64,
    because float32 loses digits.
    """
    positions = torch.arange(length, dtype=torch.float64, device=device)[:, None]
    features = torch.arange(0, embed_dim, 2, dtype=torch.float64, device=device)
    steps = embed_dim if timescales == "exclusive" else embed_dim - 2
    angles = positions / base ** (features / steps)
    both = [angles.sin(), angles.cos()]
    if layout == "halves":
        return torch.cat(both, dim=-1)
    return torch.stack(both, dim=-1).reshape(length, embed_dim)
