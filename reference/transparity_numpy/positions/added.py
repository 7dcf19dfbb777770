"""Positions that are added to the embeddings: rows of a learned table, or sinusoidal."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64, Int
from numpy import ndarray as Array

from transparity.config import RopeLayout, Timescales, TransformerConfig
from transparity_numpy.shapes import IsToken


def position_ids(
    config: TransformerConfig, is_token: IsToken, positions: Int[Array, "#batch length"]
) -> Int[Array, "#batch length"]:
    """Return the row of the position table for each token at `positions`.

    With `position_count` "visible", padding does not count. It gets the row before the first token's row (RoBERTa,
    OPT).
    """
    if config.position_count == "all":
        return positions + config.position_offset
    positions = np.broadcast_to(positions, (len(is_token), positions.shape[1]))
    counted = np.where(is_token, np.cumsum(is_token, axis=1), 0)
    return np.take_along_axis(counted, positions, axis=1) + config.position_offset - 1


def sinusoidal_positions(
    length: int,
    embed_dim: int,
    base: float = 10_000.0,
    layout: RopeLayout = "interleaved",
    timescales: Timescales = "exclusive",
) -> Float64[Array, "length embed_dim"]:
    """sin(position / base^(i / embed_dim)) at even features i, and the cosine of the same angle at i + 1.

    The formula is from document 003 and Vaswani et al. 2017, §3.5. With `halves`, all sines precede all cosines
    (Marian). With `inclusive` timescales, the last timescale is `base` (Whisper). Angles are computed in float64,
    because float32 loses digits.
    """
    steps = embed_dim if timescales == "exclusive" else embed_dim - 2
    angles = np.arange(length)[:, None] / base ** (np.arange(0, embed_dim, 2) / steps)
    both = [np.sin(angles), np.cos(angles)]
    if layout == "halves":
        return np.concatenate(both, axis=-1)
    return np.stack(both, axis=-1).reshape(length, embed_dim)
