"""Compare values up to rounding, and determine constants, preferring the simplest number that fits."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np

from transparity_conformance.diagnosis.search.fitting import golden_section
from transparity_conformance.oracle.budgets import RULES, epsilon

SAME = epsilon("float32") ** 0.5
"""Arrays with a smaller relative difference count as equal: half of float32's digits agree."""

DIGITS = 12


def difference(value: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference, divided by the largest element; infinity for different sizes."""
    if value.size != other.size:
        return math.inf
    flat, against = value.reshape(-1), other.reshape(-1)
    scale = max(np.abs(flat).max(initial=0.0), np.abs(against).max(initial=0.0))
    if not np.isfinite(scale):
        return math.inf
    return float(np.abs(flat - against).max(initial=0.0) / scale) if scale else 0.0


def is_same(value: np.ndarray, other: np.ndarray) -> bool:
    return difference(value, other) < SAME


def digits(value: float) -> int:
    return len(f"{value:.{DIGITS}e}".partition("e")[0].replace(".", "").rstrip("0")) if value else 1


def settle(
    estimate: float, error: Callable[[float], float], preferred: Iterable[float] = (), precision: str = "float64"
) -> float:
    """Return the simplest number that fits as well as `estimate`: a `preferred` number, or `estimate` with few digits.
    `error` returns the relative error of a number; errors within the rounding of `precision` do not count."""
    bound = 2 * error(estimate) + RULES[precision].floor * epsilon(precision)
    rounded = (float(f"{estimate:.{count}e}") for count in range(DIGITS))
    for value in (*preferred, *rounded):
        if error(value) <= bound:
            return value
    return estimate


def settled(number: float) -> float:
    return settle(number, lambda tried: abs(tried / number - 1), (), "float32")


def factor_between(x: np.ndarray, made: np.ndarray) -> float | None:
    squares = float((x * x).sum())
    factor = float((x * made).sum()) / squares if squares and x.size == made.size else 0.0
    if not factor or not is_same(x * factor, made):
        return None
    return settle(factor, lambda tried: difference(tried * x, made))


def minimize(error: Callable[[float], float], low: float, high: float) -> float:
    """Return the number between `low` > 0 and `high` with the least error, by grid and golden-section search."""
    grid = np.geomspace(low, high, 400).tolist()
    best = int(np.argmin([error(value) for value in grid]))
    return list(itertools.islice(golden_section(error, grid, best), 70))[-1][0]
