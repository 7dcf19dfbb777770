"""The mask of an attention window: True where a key is near enough to the query."""

from __future__ import annotations

import torch

from transparity.config import WindowKind
from transparity_pytorch.positions.bias import distances
from transparity_pytorch.shapes import MaskArray, Positions


def window_mask(positions: Positions, keys: int, window: int, kind: WindowKind = "sliding") -> MaskArray:
    """Return the mask that hides keys `window` or more positions away (Beltagy et al. 2020, §3.1).

    With `chunked`, it hides keys in other chunks of `window` positions (Llama 4).
    """
    if kind == "chunked":
        return (torch.arange(keys, device=positions.device) // window == positions[..., None] // window)[:, None]
    return (distances(positions, keys).abs() < window)[:, None]
