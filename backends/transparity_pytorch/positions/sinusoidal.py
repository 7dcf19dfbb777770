"""Sinusoidal positions, added to the embeddings (Vaswani et al. 2017, §3.5)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from transparity.config import RopeLayout, Timescales, TransformerConfig
from transparity_pytorch.shapes import Hidden
from transparity_pytorch.state.context import Context


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


def add_sinusoidal(config: TransformerConfig, module: Any, x: Hidden, context: Context) -> Hidden:
    options = (config.embed_dim, config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
    table = sinusoidal_positions(context.mask.array.shape[-1], *options, context.positions.device)
    return x + table.to(x.dtype)[context.positions]
