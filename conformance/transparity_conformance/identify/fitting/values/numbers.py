"""Compare values up to rounding, and determine constants, preferring the simplest number that fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np

from transparity_conformance.diagnosis.search.fitting import golden_section
from transparity_conformance.oracle.budgets import RULES, epsilon

SAME = epsilon("float32") ** 0.5
"""Arrays with a smaller relative difference count as equal: they agree in half of float32's digits."""

DIGITS = 12
"""The largest number of digits of a constant in a program's source code."""


def difference(value: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference of two arrays, divided by the largest element; infinity if the sizes differ."""
    if value.size != other.size:
        return math.inf
    flat, against = value.reshape(-1), other.reshape(-1)
    scale = max(np.abs(flat).max(initial=0.0), np.abs(against).max(initial=0.0))
    if not np.isfinite(scale):
        return math.inf
    return float(np.abs(flat - against).max(initial=0.0) / scale) if scale else 0.0


def is_same(value: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays have the same elements in the same order, up to rounding."""
    return difference(value, other) < SAME


def digits(value: float) -> int:
    return len(f"{value:.{DIGITS}e}".partition("e")[0].replace(".", "").rstrip("0")) if value else 1


def settle(
    estimate: float, error: Callable[[float], float], preferred: Iterable[float] = (), precision: str = "float64"
) -> float:
    """Return a simple number that fits as well as `estimate`: a `preferred` number, or a number with few digits.

    Args:
        error: a function that returns the relative error of a number.
        precision: the precision of the values; errors within its rounding are ignored.
    """
    bound = 2 * error(estimate) + RULES[precision].floor * epsilon(precision)
    rounded = (float(f"{estimate:.{count}e}") for count in range(DIGITS))
    for value in (*preferred, *rounded):
        if error(value) <= bound:
            return value
    return estimate


def settled(number: float) -> float:
    return settle(number, lambda tried: abs(tried / number - 1), (), "float32")


def factor_between(x: np.ndarray, made: np.ndarray) -> float | None:
    """Return the factor for which `x` · factor = `made`; None if there is no such factor."""
    squares = float((x * x).sum())
    factor = float((x * made).sum()) / squares if squares and x.size == made.size else 0.0
    if not factor or not is_same(x * factor, made):
        return None
    return settle(factor, lambda tried: difference(tried * x, made))


def minimize(error: Callable[[float], float], low: float, high: float) -> float:
    """Return the number between `low` > 0 and `high` with the least error, by a grid and golden-section search."""
    grid = np.geomspace(low, high, 400).tolist()
    best = int(np.argmin([error(value) for value in grid]))
    return list(itertools.islice(golden_section(error, grid, best), 70))[-1][0]
