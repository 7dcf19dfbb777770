"""Masks (batch, heads, queries, keys), True where a query may attend to a key; an axis of size 1 is broadcast."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from transparity.config import TargetMask, WindowKind
from transparity_numpy.positions.bias import distances
from transparity_numpy.shapes import Frames, IsQuery, IsToken, Mask, Positions, SourceIds


def visible_keys(
    tokens: SourceIds | Frames, pad_id: int | None, attention_mask: IsToken | SourceIds | None = None
) -> IsToken:
    """Return True where `attention_mask` is not zero or, without it, where the token is not `pad_id`.

    Two frames of audio make one position, which is never padding.
    """
    if attention_mask is not None:
        return attention_mask != 0
    if tokens.ndim == 3:
        return np.ones((len(tokens), tokens.shape[2] // 2), bool)
    return tokens != pad_id if pad_id is not None else np.ones(tokens.shape, bool)


def padding_mask(is_token: IsToken) -> Bool[Array, "batch 1 1 keys"]:
    """Return the mask that hides padding from every query (documents 000, 002, 003, 004)."""
    return is_token[:, None, None, :]


def causal_mask(positions: Positions, keys: int) -> Bool[Array, "#batch 1 queries keys"]:
    """Return the mask that hides later positions: a query at position t sees the keys 0 … t (all five documents)."""
    return (np.arange(keys) <= positions[..., None])[:, None]


def target_mask(positions: Positions, is_token: IsToken, kind: TargetMask) -> Bool[Array, "#batch 1 queries keys"]:
    """Return the causal mask of a decoder; with `causal-and-padding`, the mask also hides padding (document 003)."""
    causal = causal_mask(positions, is_token.shape[1])
    return causal & padding_mask(is_token) if kind == "causal-and-padding" else causal


def visible_queries(is_token: IsToken, positions: Positions) -> IsQuery:
    """Return True for the queries at `positions` that are not padding."""
    return np.take_along_axis(is_token, np.broadcast_to(positions, (len(is_token), positions.shape[1])), axis=1)


def window_mask(positions: Positions, keys: int, window: int, kind: WindowKind = "sliding") -> Mask:
    """Hide keys `window` or more positions away (Beltagy et al. 2020, §3.1); `chunked`: in other chunks (Llama 4)."""
    if kind == "chunked":
        return (np.arange(keys) // window == positions[..., None] // window)[:, None]
    return (np.abs(distances(positions, keys)) < window)[:, None]
