"""Sinusoidal positions, added to the embeddings (Vaswani et al. 2017, §3.5)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float64

from transparity.config import RopeLayout, Timescales, TransformerConfig
from transparity_flax.shapes import Hidden
from transparity_flax.state.context import Context


def sinusoidal_positions(
    length: int,
    embed_dim: int,
    base: float = 10_000.0,
    layout: RopeLayout = "interleaved",
    timescales: Timescales = "exclusive",
) -> Float64[np.ndarray, "length embed_dim"]:
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


def add_sinusoidal(config: TransformerConfig, module: Any, x: Hidden, context: Context) -> Hidden:
    options = (config.embed_dim, config.rope_theta, config.rope_layout, config.sinusoidal_timescales)
    table = sinusoidal_positions(context.mask.array.shape[-1], *options)
    return x + jnp.asarray(table, x.dtype)[context.positions]
