"""Scores that a port masks before it scales them: those that are −∞ by then are what they were made from, scaled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.budgets import epsilon


def unmasked(operations: Sequence[Operation], index: int) -> np.ndarray:
    """The value of an operation; where it is −∞, the multiple of the unmasked value that it is elsewhere."""
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
    """The number by which `unmasked` is multiplied where it is seen; None if it differs."""
    one, other = unmasked[seen], value[seen]
    multiple = float(one @ other / (one @ one)) if one.any() else 1.0
    tolerance = epsilon("float32") ** 0.5 * float(np.abs(other).max())
    return multiple if bool(np.all(np.abs(multiple * one - other) <= tolerance)) else None
