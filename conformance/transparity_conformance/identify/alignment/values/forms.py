"""Values that ports store in another form: repeated heads, and scores masked before scaling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.budgets import epsilon


def unrepeated(value: np.ndarray, heads: int, shared: int) -> np.ndarray:
    """Return the value without repeated heads: each of the `shared` heads once, if an axis of `heads` repeats them."""
    if shared == heads or not value.size or value.min() == value.max():  # constants equal their repetition
        return value
    for axis in [axis for axis, size in enumerate(value.shape) if size == heads]:
        grouped = value.reshape(*value.shape[:axis], shared, heads // shared, *value.shape[axis + 1 :])
        first = grouped.take(0, axis + 1)
        if np.array_equal(grouped, np.expand_dims(first, axis + 1).repeat(heads // shared, axis + 1)):
            return first
    return value


def unmasked(operations: Sequence[Operation], index: int) -> np.ndarray:
    """Return the value of an operation, with each −∞ replaced by the score before masking, scaled alike."""
    value = operations[index].value
    hidden = np.isneginf(value)
    if not hidden.any() or hidden.all():
        return value
    waiting = list(operations[index].inputs)
    while waiting:
        earlier = operations[waiting.pop()]
        if earlier.value.shape == value.shape:
            if np.isfinite(earlier.value).all():
                multiple = _multiple(earlier.value, value, ~hidden)
                return value if multiple is None else np.where(hidden, multiple * earlier.value, value)
            waiting += earlier.inputs
    return value


def _multiple(unmasked: np.ndarray, value: np.ndarray, seen: np.ndarray) -> float | None:
    """Return the constant factor from `unmasked` to `value` where scores are visible; None if the factor varies."""
    one, other = unmasked[seen], value[seen]
    multiple = float(one @ other / (one @ one)) if one.any() else 1.0
    tolerance = epsilon("float32") ** 0.5 * float(np.abs(other).max())
    return multiple if bool(np.all(np.abs(multiple * one - other) <= tolerance)) else None
