"""Rotary positions (Su et al. 2021): each pair of features is rotated by an angle that grows with the position."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from transparity.config import RopeLayout, TransformerConfig
from transparity_flax.shapes import Frequencies, Heads, RotaryTables


def rotate(x: Heads, tables: RotaryTables, layout: RopeLayout) -> Heads:
    """Rotate pairs (a, b) of features: (a cos − b sin, b cos + a sin); the other features are unchanged."""
    cosine, sine = tables
    half = cosine.shape[-1]
    rotated, rest = x[..., : 2 * half], x[..., 2 * half :]
    interleaved, halves = (rotated[..., ::2], rotated[..., 1::2]), (rotated[..., :half], rotated[..., half:])
    a, b = interleaved if layout == "interleaved" else halves
    both = [a * cosine - b * sine, b * cosine + a * sine]
    if layout == "interleaved":
        return jnp.concatenate([jnp.stack(both, axis=-1).reshape(rotated.shape), rest], axis=-1)
    return jnp.concatenate([*both, rest], axis=-1)


def plain_frequencies(config: TransformerConfig) -> Frequencies:
    """theta^(−2 i / features), the angle per position of pair i of the features (Su et al. 2021, §3.2.2)."""
    return config.rope_theta ** -(np.arange(0, config.rotated_dim, 2) / config.rotated_dim)
