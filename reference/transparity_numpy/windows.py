"""The mask of an attention window: True where a key is near enough to the query."""

from __future__ import annotations

import numpy as np

from transparity.config import WindowKind
from transparity_numpy.positions.bias import distances
from transparity_numpy.shapes import Mask, Positions


def window_mask(positions: Positions, keys: int, window: int, kind: WindowKind = "sliding") -> Mask:
    """Return the mask that hides keys `window` or more positions away (Beltagy et al. 2020, §3.1).

    With `chunked`, it hides keys in other chunks of `window` positions (Llama 4).
    """
    if kind == "chunked":
        return (np.arange(keys) // window == positions[..., None] // window)[:, None]
    return (np.abs(distances(positions, keys)) < window)[:, None]
