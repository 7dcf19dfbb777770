"""Determine the fields of rotary positions from a query before and after the rotation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from transparity.config import RopeLayout
from transparity_conformance.identify.fitting.values.numbers import SAME, digits, is_same, settle, settled
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.budgets import RULES, epsilon

USUAL_THETA = (10_000.0, 500_000.0, 1_000_000.0)
USUAL_ORIGINAL = (8192, 2048, 4096)
USUAL_FACTORS = (8.0, 32.0, 2.0, 4.0, 16.0)
LOW, HIGH = 1.0, 4.0
"""Llama 3.1 blends scaled and unscaled angles between these numbers of turns."""


@dataclass(frozen=True)
class Rotary:
    layout: RopeLayout
    features: int
    theta: float
    scaling: str = "none"
    factor: float = 1.0
    original: int = 8192
    error: float = 0.0


def rotated_among(query: np.ndarray, operations: Sequence[Operation]) -> Iterator[np.ndarray]:
    """Yield values with the norms of the query's vectors, and with the same vectors at the first position."""
    batch, heads, length, width = query.shape
    lengths = np.linalg.norm(query, axis=-1)
    for operation in operations:
        if operation.value.size != query.size:
            continue
        for value in (
            operation.value.reshape(query.shape),
            operation.value.reshape(batch, length, heads, width).swapaxes(1, 2),
        ):
            is_turned = is_same(value[:, :, 0], query[:, :, 0]) and is_same(np.linalg.norm(value, axis=-1), lengths)
            if is_turned and not is_same(value, query):
                yield value


def rotary(query: np.ndarray, rotated: np.ndarray) -> Rotary | None:
    tried = []
    for features in range(2, query.shape[-1] + 1, 2):
        layouts: tuple[RopeLayout, ...] = ("interleaved", "halves")
        for layout in layouts:
            angles, error = _angles(query, rotated, features, layout)
            tried.append((error, features, layout, angles))
    least = min(error for error, *_ in tried)
    if least > SAME:
        return None
    # Take the smallest number of features, because more features also fit, with angles of 0.
    _, features, layout, angles = next(each for each in tried if each[0] <= 4 * least + np.finfo(float).eps)
    return _explained(_frequencies(angles), layout, features, query.shape[2])


def _angles(query: np.ndarray, rotated: np.ndarray, features: int, layout: RopeLayout) -> tuple[np.ndarray, float]:
    """Return the angle of each pair of features at each position, and the largest relative error."""
    pairs = {"interleaved": (slice(0, features, 2), slice(1, features, 2))}
    first, second = pairs.get(layout, (slice(0, features // 2), slice(features // 2, features)))
    before, after = (value[..., first] + 1j * value[..., second] for value in (query, rotated))
    angles = np.angle((after * before.conj()).sum((0, 1)))
    left = np.abs(after - before * np.exp(1j * angles)).max(initial=0.0)
    rest = np.abs(query[..., features:] - rotated[..., features:]).max(initial=0.0)
    return angles, float(max(left, rest) / np.abs(query).max())


def _frequencies(angles: np.ndarray) -> np.ndarray:
    """Return each pair's angle per position; later positions are more exact."""
    found = angles[1]
    for position in range(2, len(angles)):
        turns = np.round((position * found - angles[position]) / (2 * math.pi))
        found = (angles[position] + 2 * math.pi * turns) / position
    return found


def _explained(found: np.ndarray, layout: RopeLayout, features: int, length: int) -> Rotary | None:
    exponents = np.arange(len(found)) * 2 / features

    def error(made: np.ndarray) -> float:
        return float((np.abs(made - found) / (np.abs(found) + SAME / length)).max())

    def fitted(scaled: np.ndarray) -> tuple[float, float]:
        """Return theta and its error, if the frequencies are powers of theta."""
        plain = [
            float(each ** (-1 / exponent)) for each, exponent in zip(scaled[1:], exponents[1:], strict=True) if each > 0
        ]
        factor = found[0] / scaled[0]

        def wrong(theta: float) -> float:
            return error(theta**-exponents * factor)

        theta = settle(min(plain, key=wrong, default=USUAL_THETA[0]), wrong, USUAL_THETA, "float32")
        return theta, wrong(theta)

    theta, wrong = fitted(found / 1.0)
    if wrong < SAME and abs(found[0] - 1) < SAME:
        return Rotary(layout, features, theta, error=wrong)
    factor = settled(float(1 / found[0]))
    theta, wrong = fitted(found * factor)
    made = [Rotary(layout, features, theta, "linear", factor, error=wrong)] if wrong < SAME else []
    # Compute candidates for theta from pairs of neighboring angles, assuming that both are scaled alike.
    steps = np.abs(found[1:] / found[:-1]) ** (-1 / exponents[1]) if len(found) > 1 else np.empty(0)
    shown = [float(f"{step:.3g}") for step in steps if 1 < step < np.inf]
    thetas = dict.fromkeys([*map(float, steps), *shown, *USUAL_THETA])
    made += [_llama3(found, exponents, theta, layout, features, error) for theta in thetas]
    return min(made, key=lambda each: each.error, default=None)


def _llama3(
    found: np.ndarray,
    exponents: np.ndarray,
    theta: float,
    layout: RopeLayout,
    features: int,
    error: Callable[[np.ndarray], float],
) -> Rotary:
    plain = theta**-exponents
    ratios = found / plain
    factor = settled(float(1 / ratios.min()))
    lowest = int(ratios.argmin())
    for usual in USUAL_FACTORS:  # float32 stores few digits of a slow angle
        is_alike = abs(plain[lowest] / usual - found[lowest]) < RULES["float32"].floor * epsilon("float32")
        factor = usual if is_alike and digits(usual) < digits(factor) else factor
    shares = (ratios - 1 / factor) / (1 - 1 / factor) if factor != 1 else np.ones_like(ratios)
    between = (shares > SAME) & (shares < 1 - SAME)
    if between.any():
        turns = shares[between] * (HIGH - LOW) + LOW
        original = round(float(np.median(2 * math.pi * turns / plain[between])))
    else:
        slow, fast = plain[shares <= 0.5], plain[shares > 0.5]
        low = 2 * math.pi * HIGH / fast.min() if fast.size else 1.0
        high = 2 * math.pi * LOW / slow.max() if slow.size else math.inf
        original = next((each for each in USUAL_ORIGINAL if low <= each <= high), math.ceil(low))
    turns = original * plain / (2 * math.pi)
    share = np.clip((turns - LOW) / (HIGH - LOW), 0, 1)
    wrong = error((1 - share) * plain / factor + share * plain)
    return Rotary(layout, features, theta, "llama3", factor, max(original, 1), wrong)
