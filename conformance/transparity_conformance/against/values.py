"""Values that are equal in any order of their axes, within what rounding explains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.listening.program import Change, Program, Values
from transparity_conformance.oracle.budgets import NEIGHBOURS, RULES, epsilon

HUGE = 1e30
"""Numbers beyond it are as good as infinite; the lowest number of each dtype is one."""


def fingerprint(value: Any) -> np.ndarray | None:
    """Return the numbers of a tensor or an array in order; None if they tell nothing.

    All scores that are masked count as one number, whatever it is. A value of two different numbers, such as a mask,
    tells only how often it has each.
    """
    numbers = _numbers(value)
    if numbers is None or numbers.size < 2 or np.isnan(numbers).any():
        return None
    if numbers.min() < EXACT_MASK_BELOW or numbers.max() > HUGE:
        numbers = np.clip(np.where(numbers < EXACT_MASK_BELOW, EXACT_MASK_BELOW, numbers), None, HUGE)
    numbers = np.sort(numbers)
    inside = (numbers != numbers[0]) & (numbers != numbers[-1])
    return numbers if inside.any() else None


def _numbers(value: Any) -> np.ndarray | None:
    if isinstance(value, np.ndarray):
        return value.astype(np.float64, copy=False).reshape(-1)
    import torch

    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    return value.detach().to(torch.float64).reshape(-1).numpy()


class Known:
    """Fingerprints that others are looked up among."""

    def __init__(self, prints: Mapping[int, np.ndarray | None]) -> None:
        by_size: dict[int, dict[int, np.ndarray]] = {}
        for index, numbers in prints.items():
            if numbers is not None:
                by_size.setdefault(numbers.size, {})[index] = numbers
        self._groups = {size: (np.array([*rows]), np.stack([*rows.values()])) for size, rows in by_size.items()}

    def among(self, numbers: np.ndarray | None, share: float) -> list[int]:
        """Return those that differ by at most a share of the largest number."""
        if numbers is None or numbers.size not in self._groups:
            return []
        indices, rows = self._groups[numbers.size]
        apart = share * largest(numbers)
        ends = (np.abs(rows[:, 0] - numbers[0]) <= apart) & (np.abs(rows[:, -1] - numbers[-1]) <= apart)
        if not ends.any():  # most end here
            return []
        near = np.abs(rows[ends] - numbers).max(axis=1) <= apart
        return [int(index) for index in indices[ends][near]]


def largest(numbers: np.ndarray) -> float:
    """Return the largest number in size, masked scores and infinities aside."""
    plain = np.abs(numbers[(numbers > EXACT_MASK_BELOW) & (numbers < HUGE)])
    return float(plain.max()) if plain.size else 0.0


def shares(
    program: Program, dtype: str, changes: Mapping[int, Change] | None = None, seed: int = 0
) -> dict[int, float]:
    """Measure what rounding explains of each value of a program, as a share of its largest number.

    The program runs at neighbouring points in float64 and in `dtype`. Constants that the model computed when it was
    built, such as the frequencies of a rotation, differ by what a power rounds: |ln x| ulps.
    """

    rule, ulp = RULES[dtype], epsilon(dtype)
    noise: dict[int, float] = {}
    for exact, rounded in neighbours(program, dtype, changes, seed):
        for index, value in exact.items():
            if value.is_floating_point() or value.is_complex():
                noise[index] = max(noise.get(index, 0.0), _apart(value, rounded[index]))
    return {index: rule.budget(error, ulp, 1.0) for index, error in noise.items()}


def neighbours(
    program: Program, dtype: str, changes: Mapping[int, Change] | None = None, seed: int = 0
) -> Iterator[tuple[Values, Values]]:
    """Yield the values of a program at neighbouring points, in float64 and in `dtype`."""
    import torch

    precision, ulp = getattr(torch, dtype), epsilon(dtype)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(NEIGHBOURS):
        near = {
            index: moved(value, ulp, generator, is_learned=index in program.parameters)
            for index, value in program.given.items()
        }
        points = {
            index: value if index in program.parameters else program.given[index] for index, value in near.items()
        }
        yield program.run(changes, points), program.run(changes, near, precision)


def moved(value: Any, ulp: float, generator: Any, *, is_learned: bool) -> Any:
    """Return a tensor with each number moved by up to an ulp; by what a power rounds, if it was not learned."""
    import torch

    if not value.is_floating_point():
        return value
    turned = torch.rand(value.shape, generator=generator, dtype=torch.float64) * 2 - 1
    size = 1.0 if is_learned else 1 + value.abs().clamp(1e-30, HUGE).log().abs()
    return value * (1 + ulp * size * turned)


def _apart(exact: Any, rounded: Any) -> float:
    """The largest difference as a share of the largest number, masked scores aside."""
    a, b = _numbers(exact), _numbers(rounded)
    if a is None or b is None or a.shape != b.shape or not a.size:
        return 0.0
    plain = (np.abs(a) < HUGE) & (a > EXACT_MASK_BELOW)
    scale = np.abs(a[plain]).max(initial=0.0)
    return float(np.abs(a[plain] - b[plain]).max(initial=0.0) / scale) if scale else 0.0


def agreeing(ours: Any, theirs: np.ndarray, share: float, kept: np.ndarray | None = None) -> bool:
    """Return whether two values agree number by number, in what is kept of them."""
    a = _numbers(ours)
    if a is None or a.size != theirs.size:
        return False
    b = theirs.reshape(-1)
    if kept is not None:
        a, b = a[kept.reshape(-1)], b[kept.reshape(-1)]
    with np.errstate(invalid="ignore"):
        return bool(np.abs(a - b).max(initial=0.0) <= share * np.abs(a).max(initial=0.0))
