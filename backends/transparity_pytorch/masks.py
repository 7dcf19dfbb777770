"""Masks (batch, heads, queries, keys), True where a query may attend to a key; an axis of size 1 is broadcast."""

from __future__ import annotations

import torch

from transparity.config import TargetMask
from transparity_pytorch.shapes import CausalMask, IsToken, PaddingMask, Positions, Source, SourceIds


def visible_keys(
    tokens: Source, pad_id: int | None, attention_mask: IsToken | SourceIds | None = None, positions: int | None = None
) -> IsToken:
    """Return True where `attention_mask` is not 0 or, without an `attention_mask`, where the token is not `pad_id`.

    For images and audio, which have no padding, `positions` is the number of positions.
    """
    if attention_mask is not None:
        return attention_mask != 0
    if positions is not None:
        return torch.ones(len(tokens), positions, dtype=torch.bool, device=tokens.device)
    return tokens != pad_id if pad_id is not None else torch.ones_like(tokens, dtype=torch.bool)


def padding_mask(is_token: IsToken) -> PaddingMask:
    """Return the mask that hides padding from every query (documents 000, 002, 003, 004)."""
    return is_token[:, None, None, :]


def causal_mask(positions: Positions, keys: int) -> CausalMask:
    """Return the mask that hides later positions: a query at position t sees the keys 0 … t (all five documents)."""
    return (torch.arange(keys, device=positions.device) <= positions[..., None])[:, None]


def target_mask(positions: Positions, is_token: IsToken, kind: TargetMask) -> CausalMask:
    """Return the causal mask of a decoder; with `causal-and-padding`, the mask also hides padding (document 003)."""
    causal = causal_mask(positions, is_token.shape[1])
    return causal & padding_mask(is_token) if kind == "causal-and-padding" else causal
