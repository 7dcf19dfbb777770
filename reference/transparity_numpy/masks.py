"""Masks: True where a query may attend to a key. Axes are (batch, heads, queries, keys), 1 to broadcast."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from transparity.config import TargetMask
from transparity_numpy.shapes import Frames, IsQuery, IsToken, Positions, SourceIds


def visible_keys(
    tokens: SourceIds | Frames, pad_id: int | None, attention_mask: IsToken | SourceIds | None = None
) -> IsToken:
    """True for tokens that are not padding: where `attention_mask` is nonzero, if given; else where the token is not
    `pad_id`, if there is one. Two frames of audio are one position, which is not padding."""
    if attention_mask is not None:
        return attention_mask != 0
    if tokens.ndim == 3:
        return np.ones((len(tokens), tokens.shape[2] // 2), bool)
    return tokens != pad_id if pad_id is not None else np.ones(tokens.shape, bool)


def padding_mask(is_token: IsToken) -> Bool[Array, "batch 1 1 keys"]:
    """Hide padding from every query (documents 000, 002, 003, 004)."""
    return is_token[:, None, None, :]


def causal_mask(positions: Positions, keys: int) -> Bool[Array, "#batch 1 queries keys"]:
    """Hide the future: a query at position t sees the keys 0 … t (all five documents)."""
    return (np.arange(keys) <= positions[..., None])[:, None]


def target_mask(positions: Positions, is_token: IsToken, kind: TargetMask) -> Bool[Array, "#batch 1 queries keys"]:
    """Mask of a decoder's self-attention: the future, and with `causal-and-padding` padding too (003)."""
    causal = causal_mask(positions, is_token.shape[1])
    return causal & padding_mask(is_token) if kind == "causal-and-padding" else causal


def visible_queries(is_token: IsToken, positions: Positions) -> IsQuery:
    """The queries at `positions` that are not padding."""
    return np.take_along_axis(is_token, np.broadcast_to(positions, (len(is_token), positions.shape[1])), axis=1)
