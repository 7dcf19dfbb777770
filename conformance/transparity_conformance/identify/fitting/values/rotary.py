"""Determine the fields of rotary positions from a query before and after the rotation."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

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


def rotated_among(query: np.ndarray, operations: Sequence[Operation]) -> Iterator[np.ndarray]:
    """Yield values that may be the rotated query: vectors have the same norms, and the vectors at position 0 are
    unchanged."""
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


def rotary_fields(query: np.ndarray, rotated: np.ndarray) -> dict[str, Any] | None:
    tried = []
    for features, layout in itertools.product(range(2, query.shape[-1] + 1, 2), get_args(RopeLayout)):
        angles, error = _angles(query, rotated, features, layout)
        tried.append((error, features, layout, angles))
    least = min(error for error, *_ in tried)
    if least > SAME:
        return None
    # Take the smallest number of features, because more features also fit, with angles of 0.
    _, features, layout, angles = next(each for each in tried if each[0] <= 4 * least + np.finfo(float).eps)
    return {"positions": "rotary", "rope_layout": layout, "rotary_dim": features, **_scaled(_frequencies(angles))}


def _angles(query: np.ndarray, rotated: np.ndarray, features: int, layout: RopeLayout) -> tuple[np.ndarray, float]:
    """Return the angle of each pair of features at each position, and the largest relative error."""
    pairs = {"interleaved": (slice(0, features, 2), slice(1, features, 2))}
    first, second = pairs.get(layout, (slice(0, features // 2), slice(features // 2, features)))
    before, after = (value[..., first] + 1j * value[..., second] for value in (query, rotated))
    angles = np.angle((after * before.conj()).sum((0, 1)))
    left = np.abs(after - before * np.exp(1j * angles)).max(initial=0.0)
    rest = np.abs(query[..., features:] - rotated[..., features:]).max(initial=0.0)
    return angles, float(max(left, rest) / np.abs(query).max())


def _frequencies(angles: np.ndarray) -> tuple[np.ndarray, int]:
    """Return each pair's angle per position, and the number of positions. Later positions give more exact angles."""
    found = angles[1]
    for position in range(2, len(angles)):
        turns = np.round((position * found - angles[position]) / (2 * math.pi))
        found = (angles[position] + 2 * math.pi * turns) / position
    return found, len(angles)


def _scaled(measured: tuple[np.ndarray, int]) -> dict[str, Any]:
    """Return theta and the scaling with which the frequencies are nearest to the measured ones."""
    found, length = measured
    exponents = np.arange(len(found)) / len(found)
    plain = {"rotary_scaling": "none", "rotary_factor": 1.0, "rotary_original_length": 8192}

    def error(made: np.ndarray) -> float:
        return float((np.abs(made - found) / (np.abs(found) + SAME / length)).max())

    def fitted(factor: float) -> tuple[float, float]:
        """Return theta and its error, if the frequencies are powers of theta, divided by a factor."""
        pairs = zip(found[1:] * factor, exponents[1:], strict=True)
        powers = [float(each ** (-1 / exponent)) for each, exponent in pairs if each > 0]
        best = min(powers, key=lambda each: error(each**-exponents / factor), default=USUAL_THETA[0])
        theta = settle(best, lambda each: error(each**-exponents / factor), USUAL_THETA, "float32")
        return theta, error(theta**-exponents / factor)

    theta, wrong = fitted(1.0)
    if wrong < SAME and abs(found[0] - 1) < SAME:
        return {**plain, "rope_theta": theta}
    factor = settled(float(1 / found[0]))
    theta, wrong = fitted(factor)
    made = [(wrong, {**plain, "rope_theta": theta, "rotary_scaling": "linear", "rotary_factor": factor})]
    # Compute candidates for theta from pairs of neighboring angles, assuming that both are scaled alike.
    steps = np.abs(found[1:] / found[:-1]) ** (-1 / exponents[1]) if len(found) > 1 else np.empty(0)
    shown = [float(f"{step:.3g}") for step in steps if 1 < step < np.inf]
    thetas = dict.fromkeys([*map(float, steps), *shown, *USUAL_THETA])
    made = made * (wrong < SAME) + [_llama3(found, theta, exponents, error) for theta in thetas]
    return min(made, key=lambda each: each[0])[1]


def _llama3(
    found: np.ndarray, theta: float, exponents: np.ndarray, error: Callable[[np.ndarray], float]
) -> tuple[float, dict[str, Any]]:
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
    names = ("rope_theta", "rotary_scaling", "rotary_factor", "rotary_original_length")
    return wrong, dict(zip(names, (theta, "llama3", factor, max(original, 1)), strict=True))
