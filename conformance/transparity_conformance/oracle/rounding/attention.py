"""Attention whose sums over the keys are taken in sequence, one key at a time.

NumPy sums pairwise and BLAS in blocks, so the reference's own error hardly grows with the number of keys. A port that
keeps a running total and a running context, as an online softmax does (Milakov and Gimelshein 2018; Dao et al. 2022),
rounds at every key. Where many keys weigh alike, as padding does under a mask that hides little, these roundings go
one way: at 1,025 keys of the walkthrough it errs by 33 times as much. That is rounding, so it belongs to the noise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from jaxtyping import Bool, Inexact
from numpy import ndarray as Array

from transparity.taps import Tap, identity
from transparity_numpy.attention import attention as in_blocks
from transparity_numpy.attention import attention_scores, merge_heads, repeat_heads

PAIRWISE = 128
"""NumPy adds up to so many numbers in eight running totals, and splits longer sums (`pairwise_sum`). Up to here the
order makes little difference: at 129 keys of the walkthrough an online softmax uses 0.7 of the reference's budget."""


def softmax_in_sequence(scores: Inexact[Array, "*batch keys"]) -> Inexact[Array, "*batch keys"]:
    """Softmax over the last axis whose total is a running one; `sum` would take it pairwise."""
    exponentials = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    return exponentials / np.cumsum(exponentials, axis=-1)[..., -1:]


def product_in_sequence(
    weights: Inexact[Array, "*batch queries keys"], value: Inexact[Array, "*batch keys head_dim"]
) -> Inexact[Array, "*batch queries head_dim"]:
    """weights · value, one key added after the other."""
    total = np.zeros((*weights.shape[:-1], value.shape[-1]), np.result_type(weights, value))
    for key in range(weights.shape[-1]):
        total += weights[..., key : key + 1] * value[..., key : key + 1, :]
    return total


def attention(
    query: Inexact[Array, "batch heads queries head_dim"],
    key: Inexact[Array, "batch key_heads keys head_dim"],
    value: Inexact[Array, "batch key_heads keys head_dim"],
    mask: Bool[Array, "#batch 1 #queries keys"],
    *,
    scale: float,
    masked_score: float,
    softcap: float | None = None,
    bias: Inexact[Array, "#batch heads #queries keys"] | None = None,
    sinks: Inexact[Array, " heads"] | None = None,
    tap: Tap = identity,
) -> Inexact[Array, "batch queries attention_dim"]:
    """The reference's `attention`, in sequence where there are more keys than `PAIRWISE`"""
    if key.shape[2] <= PAIRWISE:
        named: dict[str, Any] = {"scale": scale, "masked_score": masked_score, "softcap": softcap}
        return in_blocks(query, key, value, mask, bias=bias, sinks=sinks, tap=tap, **named)
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    scores = tap("scores", attention_scores(query, key, scale, softcap, bias))
    masked = scores.dtype.type(max(masked_score, float(np.finfo(scores.dtype).min) / 2))
    shown = np.where(mask, scores, masked)
    if sinks is not None:
        shown = np.concatenate([shown, np.broadcast_to(sinks[:, None, None], (*shown.shape[:-1], 1))], axis=-1)
    weights = tap("weights", softmax_in_sequence(shown)[..., : key.shape[2]])
    return tap("context", merge_heads(product_in_sequence(weights, value)))


@contextlib.contextmanager
def summed_in_sequence() -> Iterator[None]:
    """Within the context, the reference's attention takes its sums over the keys in sequence."""
    # The specification has no switch for this; it is measured here only.
    with mock.patch("transparity_numpy.attention.attention", attention):
        yield
