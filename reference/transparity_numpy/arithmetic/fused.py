"""Fused attention for inference, computed in place. The scores of one block of queries fit into the CPU's cache."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import EXACT_MASK_BELOW
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.precision import apply_softcap
from transparity_numpy.shapes import Bias, Mask, Queries, Scores, Sinks

BLOCK = 128
"""Queries per block: the scores of one block fit into the processor's cache."""


def applies(tap: Tap, masked_score: float) -> bool:
    """Return whether fused attention is possible: no tap function is used, and masked keys have the weight 0."""
    return tap is identity and masked_score < EXACT_MASK_BELOW


def attention(
    query: Queries,
    key: Inexact[Array, "batch heads keys head_dim"],
    value: Inexact[Array, "batch heads keys value_dim"],
    mask: Mask,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Bias | None = None,
    sinks: Sinks | None = None,
) -> Inexact[Array, "batch heads queries value_dim"]:
    """softmax(softcap(query · keyᵀ · scale) + bias) · value, in blocks of queries.

    Dividing the weighted sum of the values by the sum of the weights needs fewer divisions than dividing each weight. A
    block skips the keys after its last visible key, unless a query has no visible key and therefore weighs all keys.
    """
    given = [each for each in (query, key, value, bias, sinks) if each is not None]
    result = np.empty((*query.shape[:-1], value.shape[-1]), np.result_type(*given))
    for begin in range(0, query.shape[2], BLOCK):
        queries = slice(begin, begin + BLOCK)
        seen = mask[:, :, queries] if mask.shape[2] > 1 else mask
        keys = slice(np.flatnonzero(seen.any(axis=(0, 1, 2)))[-1] + 1 if seen.any(axis=-1).all() else seen.shape[-1])
        near = None if bias is None else bias[:, :, queries, keys]
        scores = _scores(query[:, :, queries], key[:, :, keys], seen[..., keys], scale, softcap, near)
        weights, total = _exponentials(scores, sinks)
        context = np.matmul(weights, value[:, :, keys], out=result[:, :, queries])
        context /= total
    return result


def _scores(query: Array, key: Array, mask: Array, scale: float, softcap: float | None, bias: Array | None) -> Scores:
    """softcap(query · keyᵀ · scale) + bias, where masked scores are half the lowest number of the dtype."""
    scores = query @ key.swapaxes(-2, -1)
    scores *= scores.dtype.type(scale)
    if softcap is not None:
        scores = apply_softcap(scores, softcap)
    if bias is not None:
        scores = scores + bias
    if not mask.all():
        np.copyto(scores, scores.dtype.type(np.finfo(scores.dtype).min / 2), where=~mask)
    return scores


def _exponentials(scores: Scores, sinks: Sinks | None) -> tuple[Scores, Inexact[Array, "batch heads queries 1"]]:
    """Return exp(scores − largest score), computed in place, and the sum over the keys and the sink."""
    largest = scores.real.max(axis=-1, keepdims=True)
    if sinks is None:
        weights = np.exp(np.subtract(scores, largest, out=scores), out=scores)
        return weights, weights.sum(axis=-1, keepdims=True)
    largest = np.maximum(largest, sinks.real[:, None, None])
    weights = np.exp(np.subtract(scores, largest, out=scores), out=scores)
    return weights, weights.sum(axis=-1, keepdims=True) + np.exp(sinks[:, None, None] - largest)
