"""What fused attention hides, computed in float64 from its recorded arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


def hidden(arguments: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the values that a fused attention computes on the way, by name, each from the one before it.

    Args:
        arguments: `query` (…, N, T, H), `key` and `value` (…, M, S, H) where M divides N; `mask`, broadcast to
            (…, N, T, S), bool (True is attended) or added to the scores, or None; `scale`; `is_causal`.

    Yields: `attention.scores`, scaled; `attention.masked_scores`, −∞ where masked by a bool, left out if nothing is
    masked; `attention.weights`, 0 in rows that are masked wholly; `attention.context`.
    """
    query, key, value = (arguments[name] for name in ("query", "key", "value"))
    key, value = repeated(key, query), repeated(value, query)
    scores = query @ key.swapaxes(-1, -2) * arguments["scale"]
    yield "attention.scores", scores
    masked = _masked(scores, arguments["mask"], arguments["is_causal"])
    if masked is not scores:
        yield "attention.masked_scores", masked
    weights = _softmax(masked)
    yield "attention.weights", weights
    yield "attention.context", weights @ value


def default_scale(query: np.ndarray) -> float:
    """1 / √H, for a scale that is None."""
    return 1 / math.sqrt(query.shape[-1])


def repeated(heads: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Heads of keys or values, each repeated for its group of query heads."""
    if heads.ndim < 3 or heads.shape[-3] == query.shape[-3] or query.shape[-3] % heads.shape[-3]:
        return heads
    return np.repeat(heads, query.shape[-3] // heads.shape[-3], axis=-3)


def _masked(scores: np.ndarray, mask: np.ndarray | None, is_causal: bool) -> np.ndarray:
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:]) == 1, scores, -np.inf)
    return scores


def _softmax(scores: np.ndarray) -> np.ndarray:
    largest = scores.max(-1, keepdims=True)
    exponentials = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = exponentials.sum(-1, keepdims=True)
    return np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)
