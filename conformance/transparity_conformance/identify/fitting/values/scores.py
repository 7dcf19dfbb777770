"""Determine the scale, the softcap and the mask of an attention from its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.numbers import SAME, difference, minimize, settle
from transparity_conformance.listening.operation import Operation

LEAST, MOST = 1e-9, 1e3
"""The search for a softcap starts at (1 + LEAST) × the largest score, and ends at (1 + MOST) × the largest score."""


@dataclass(frozen=True, eq=False)
class Softmax:
    """An attention's weights (batch, heads, queries, keys) and their operation."""

    begins: int
    """The first operation after the previous attention's weights."""
    at: int
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Scores:
    """The input of a softmax (batch, heads, queries, keys), and the mask of hidden keys (batch, queries, keys)."""

    values: np.ndarray
    masked: np.ndarray
    masked_value: float | None


def scores_of(softmax: Softmax, operations: Sequence[Operation]) -> Scores:
    for operation in operations[softmax.begins : softmax.at]:
        if operation.value.size == softmax.weights.size:
            values = operation.value.reshape(softmax.weights.shape)
            with np.errstate(invalid="ignore", over="ignore"):
                powers = np.exp(values - values.max(-1, keepdims=True))
                weights = powers / powers.sum(-1, keepdims=True)
            if np.isfinite(weights).all() and np.abs(weights - softmax.weights).max() < SAME:
                return Scores(values, *_masked(values, softmax.weights))
    raise FitError("The scores of an attention were not found among the operations before its softmax.")


def _masked(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Return the mask of hidden scores, and the number that replaces or is added to them. A score is hidden if it has
    the same number in all heads, or the weight 0."""
    numbers, counts = np.unique(values, return_counts=True)
    for number in numbers[np.argsort(-counts)[:12]]:  # the most frequent scores
        everywhere = (values == number).all(1)
        if everywhere.sum() > len(everywhere) and is_pattern(everywhere):
            return everywhere, float(number)
    none = (weights == 0).all(1)
    if not none.any() or not is_pattern(none):  # weights may also underflow to 0
        return np.zeros_like(none), None
    hidden = values[np.broadcast_to(none[:, None], values.shape)]
    added = float(np.median(hidden))  # the number of an additive mask
    is_kept = np.isfinite(added) and np.ptp(hidden.astype(np.float32)) > 0  # otherwise, rounding loses the scores
    # No number replaces scores that are kept: a query without visible keys weights its keys by their scores.
    return none, -np.inf if is_kept else float(f"{added:.1e}") if np.isfinite(added) else added


def is_pattern(masked: np.ndarray) -> bool:
    """Return whether a mask looks regular: each row of the batch hides the same keys, apart from whole keys or whole
    queries."""
    hidden = masked.all(0, keepdims=True)
    columns, rows = ((masked | hidden).all(axis, keepdims=True) for axis in (1, 2))
    return bool(((hidden | columns) == masked).all() or ((hidden | rows) == masked).all())


@dataclass(frozen=True)
class Scale:
    factor: float = 1.0
    softcap: float | None = None

    def __call__(self, raw: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = raw * self.factor
        return scaled if self.softcap is None else self.softcap * np.tanh(scaled / self.softcap)


def scale_of(raw: np.ndarray, scores: np.ndarray) -> Scale:
    """Return the scale and softcap that turn `raw` into `scores` without biases and masks."""
    plain = _factor(raw, scores, np.ones_like(raw))
    uncapped = difference(plain * raw, scores)
    if uncapped < np.finfo(np.float32).eps:
        return Scale(plain)

    def capped(cap: float) -> Scale:
        share = np.clip(scores / cap, -1, 1)
        slopes = 1 - share**2  # near the cap, scores hardly depend on the scale
        before = cap * np.arctanh(np.where(slopes > 0, share, 0))
        return Scale(_factor(raw, before, slopes), cap)

    def error(cap: float) -> float:
        return difference(capped(cap)(raw), scores)

    largest = float(np.abs(scores).max())  # a softcap exceeds all scores
    cap = largest * (1 + minimize(lambda beyond: error(largest * (1 + beyond)), LEAST, MOST))
    return Scale(plain) if uncapped <= 4 * error(cap) + np.finfo(float).eps else capped(settle(cap, error))


def _factor(raw: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> float:
    return float((weights**2 * raw * scores).sum() / (weights**2 * raw * raw).sum())


def raw_scores(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    return query @ key.repeat(query.shape[1] // key.shape[1], axis=1).swapaxes(-2, -1)
