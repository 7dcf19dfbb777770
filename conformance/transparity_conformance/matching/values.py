"""Comparison of values in any order of axes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.report.comparison import less

HUGE = 1e30
"""Larger numbers count as infinite, and each dtype's lowest number as minus infinity."""


def fingerprint(value: Any) -> np.ndarray | None:
    """Return a value's sorted numbers; None if they cannot identify it. All masked scores count as one number. A value
    with only two different numbers, such as a mask, is identified by their counts."""
    numbers = numbers_of(value)
    if numbers.size < 2:
        return None
    lowest, highest = numbers.min(), numbers.max()
    if np.isnan(lowest):
        return None
    if lowest < EXACT_MASK_BELOW or highest > HUGE:
        numbers = plain(numbers)
    numbers = np.sort(numbers)
    has_others = np.searchsorted(numbers, numbers[0], "right") < np.searchsorted(numbers, numbers[-1])
    return numbers if has_others else None


def numbers_of(value: Any) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return value.astype(np.float64, copy=False).reshape(-1)
    import torch

    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    value = value.detach() if value.requires_grad else value
    return (value if value.dtype == torch.float64 else value.to(torch.float64)).reshape(-1).numpy()


def same_numbers(one: np.ndarray, other: np.ndarray) -> bool:
    return one.size == other.size and np.array_equal(np.sort(one, axis=None), np.sort(other, axis=None))


class Known:
    """Fingerprints, indexed to find equal values quickly."""

    def __init__(self, prints: Mapping[int, np.ndarray | None]) -> None:
        by_size: dict[int, dict[int, np.ndarray]] = {}
        for index, numbers in prints.items():
            if numbers is not None:
                by_size.setdefault(numbers.size, {})[index] = numbers
        self._groups = {size: (np.array([*rows]), np.stack([*rows.values()])) for size, rows in by_size.items()}

    def equal_to(self, value: Any, share: float) -> list[int]:
        """Return the fingerprints, by index, that match a value up to `share` of its largest number."""
        size = value.size if isinstance(value, np.ndarray) else value.numel() * (1 + value.is_complex())
        if size not in self._groups:
            return []
        numbers = numbers_of(value)
        indices, rows = self._groups[numbers.size]
        lowest, highest = numbers.min(), numbers.max()
        if not (lowest >= EXACT_MASK_BELOW and highest <= HUGE):
            numbers = plain(numbers)
            lowest, highest, apart = numbers.min(), numbers.max(), share * largest(numbers)
        else:
            apart = share * max(-lowest, highest)
        ends = (np.abs(rows[:, 0] - lowest) <= apart) & (np.abs(rows[:, -1] - highest) <= apart)
        if (
            not ends.any() or (prints := fingerprint(numbers)) is None
        ):  # Most values return here, before they are sorted.
            return []
        near = np.abs(rows[ends] - prints).max(axis=1) <= apart
        return [int(index) for index in indices[ends][near]]


def plain(numbers: np.ndarray) -> np.ndarray:
    """Replace all masked scores by one number, and all infinite numbers by another."""
    return np.clip(np.where(numbers < EXACT_MASK_BELOW, EXACT_MASK_BELOW, numbers), None, HUGE)


def apart(one: np.ndarray, other: np.ndarray, kept: np.ndarray | None = None) -> np.ndarray:
    """Return the elementwise absolute difference; infinite for different shapes. Two masked scores, or two NaNs, do not
    differ. Elements outside `kept` count as equal."""
    found = np.abs(less(plain(one), plain(other)))
    return found if kept is None or found.shape != kept.shape else np.where(kept, found, 0.0)


def largest(numbers: np.ndarray) -> float:
    """Return the largest absolute value, without masked scores and infinities."""
    plain = np.abs(numbers[(numbers > EXACT_MASK_BELOW) & (numbers < HUGE)])
    return float(plain.max()) if plain.size else 0.0


def agreeing(ours: Any, theirs: np.ndarray, share: float, kept: np.ndarray | None = None) -> bool:
    """Return whether two values agree, up to `share` of the largest number, in the elements of `kept`."""
    a = numbers_of(ours)
    if a.size != theirs.size:
        return False
    b = theirs.reshape(-1)
    if kept is not None:
        a, b = a[kept.reshape(-1)], b[kept.reshape(-1)]
    return bool(apart(a, b).max(initial=0.0) <= share * largest(a))
