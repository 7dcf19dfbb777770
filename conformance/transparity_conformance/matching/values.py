"""Compare values whose axes may be in different orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.report.comparison import less

HUGE = 1e30
"""Numbers above this limit count as infinite."""


def fingerprint(value: Any) -> np.ndarray | None:
    """Return the sorted elements; masked scores become one number. Return None for NaN or fewer than three different
    elements, as in masks."""
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


def is_whole(value: np.ndarray) -> bool:
    return bool(np.isfinite(value).all()) and np.array_equal(value, np.round(value))


class Known:
    def __init__(self, prints: Mapping[int, np.ndarray | None]) -> None:
        by_size: dict[int, dict[int, np.ndarray]] = {}
        for index, numbers in prints.items():
            if numbers is not None:
                by_size.setdefault(numbers.size, {})[index] = numbers
        self._groups = {size: (np.array([*rows]), np.stack([*rows.values()])) for size, rows in by_size.items()}

    def equal_to(self, value: Any, share: float) -> list[int]:
        """Return the fingerprints that differ from a value by at most `share` of its largest element."""
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
        # The smallest and largest element exclude most values, which then need no sorting.
        if not ends.any() or (prints := fingerprint(numbers)) is None:
            return []
        near = np.abs(rows[ends] - prints).max(axis=1) <= apart
        return [int(index) for index in indices[ends][near]]


def plain(numbers: np.ndarray) -> np.ndarray:
    return np.clip(np.where(numbers < EXACT_MASK_BELOW, EXACT_MASK_BELOW, numbers), None, HUGE)


def apart(one: np.ndarray, other: np.ndarray, kept: np.ndarray | None = None) -> np.ndarray:
    """Return absolute differences: 0 for masked scores, NaNs and outside `kept`; infinity for other shapes."""
    found = np.abs(less(plain(one), plain(other)))
    return found if kept is None or found.shape != kept.shape else np.where(kept, found, 0.0)


def largest(numbers: np.ndarray) -> float:
    """Return the largest absolute value, without masked scores and infinities."""
    plain = np.abs(numbers[(numbers > EXACT_MASK_BELOW) & (numbers < HUGE)])
    return float(plain.max()) if plain.size else 0.0


def agreeing(ours: Any, theirs: np.ndarray, share: float, kept: np.ndarray | None = None) -> bool:
    """Return whether two values differ by at most `share` of the largest element, where `kept` is true."""
    a = numbers_of(ours)
    if a.size != theirs.size:
        return False
    b = theirs.reshape(-1)
    if kept is not None:
        a, b = a[kept.reshape(-1)], b[kept.reshape(-1)]
    return bool(apart(a, b).max(initial=0.0) <= share * largest(a))
