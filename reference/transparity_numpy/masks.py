"""Masks: True where a query may look at a key. Axes are (batch, heads, queries, keys), 1 where it does not matter."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray as Array

from transparity.config import TargetMask


def padding_mask(
    tokens: Int[Array, "batch keys"],
    pad_id: int | None,
    attention_mask: Bool[Array, "batch keys"] | Int[Array, "batch keys"] | None = None,
) -> Bool[Array, "batch 1 1 keys"]:
    """Hides padding from every query (documents 000, 002, 003, 004): where an `attention_mask` is 0 if one is given,
    else `pad_id`; with neither, nothing."""
    visible = tokens != pad_id if pad_id is not None else np.ones(tokens.shape, bool)
    return (visible if attention_mask is None else attention_mask != 0)[:, None, None, :]


def causal_mask(length: int) -> Bool[Array, "1 1 queries keys"]:
    """Hides the future: position t sees 0 … t (all five documents)."""
    return np.tril(np.ones((length, length), bool))[None, None]


def target_mask(
    tokens: Int[Array, "batch keys"],
    pad_id: int | None,
    kind: TargetMask,
    attention_mask: Bool[Array, "batch keys"] | Int[Array, "batch keys"] | None = None,
) -> Bool[Array, "batch 1 queries keys"] | Bool[Array, "1 1 queries keys"]:
    """What a decoder's self-attention may see: the past, and with `causal-and-padding` no padding in it (003)."""
    causal = causal_mask(tokens.shape[1])
    return causal & padding_mask(tokens, pad_id, attention_mask) if kind == "causal-and-padding" else causal


def cached_mask(
    positions: Int[Array, "batch queries"], visible: Bool[Array, "batch keys"]
) -> Bool[Array, "batch 1 queries keys"]:
    """What queries at `positions` may see of the keys in a cache: those up to their own that are `visible`."""
    past = np.arange(visible.shape[1]) <= positions[:, :, None]
    return (past & visible[:, None])[:, None]
