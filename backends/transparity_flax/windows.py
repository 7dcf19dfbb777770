"""The mask of an attention window: True where a key is near enough to the query."""

from __future__ import annotations

import jax.numpy as jnp

from transparity.config import WindowKind
from transparity_flax.positions.bias import distances
from transparity_flax.shapes import MaskArray, Positions


def window_mask(positions: Positions, keys: int, window: int, kind: WindowKind = "sliding") -> MaskArray:
    """Return the mask that hides keys `window` or more positions away (Beltagy et al. 2020, §3.1).

    With `chunked`, it hides keys in other chunks of `window` positions (Llama 4).
    """
    if kind == "chunked":
        return (jnp.arange(keys) // window == positions[..., None] // window)[:, None]
    return (jnp.abs(distances(positions, keys)) < window)[:, None]
