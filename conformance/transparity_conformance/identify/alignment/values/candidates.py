"""Everything that a port computed, indexed so that a tap is found by its numbers in any order."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from transparity_conformance.identify.alignment.values.layout import Layout, layouts

HALF_OF_THE_DIGITS = 0.5
"""Two arrays are the same activation if they agree in half of the digits of the precision: rounding costs fewer, and
numbers that have nothing to do with each other agree in none."""


@dataclass(frozen=True)
class Match:
    """A tap as the port computes it: the number of the operation, and the layout of its value."""

    index: int
    layout: Layout
    distance: float = 0.0
    """The largest difference, relative to the largest number."""


@dataclass(frozen=True, eq=False)
class PortValues:
    """The values of a port's operations, in the order of execution."""

    values: Sequence[np.ndarray]
    inputs: Sequence[Sequence[int]]
    """For each value, the numbers of those that it was made from."""
    heads: int
    tolerance: float
    """The largest relative difference of two values that are the same activation."""
    keys: Sequence[Hashable]
    """For each value, the name of the operation and its line: the same in every layer that the same code computes."""
    by_size: dict[int, list[int]] = field(default_factory=dict)
    sketches: dict[int, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, value in enumerate(self.values):
            self.by_size.setdefault(value.size, []).append(index)

    @functools.cached_property
    def made_from(self) -> list[int]:
        """For each value, the set of those that it depends on, itself included, as the bits of a number."""
        sets: list[int] = []
        for index, inputs in enumerate(self.inputs):
            sets.append(functools.reduce(operator.or_, (sets[each] for each in inputs), 1 << index))
        return sets

    def leads_to(self, index: int, later: int) -> bool:
        """Return whether the value `later` is `index`, or is made from it."""
        return bool(self.made_from[later] >> index & 1)

    def sketch(self, index: int) -> np.ndarray:
        """The sorted numbers of a value, which no permutation of its axes changes."""
        if index not in self.sketches:
            self.sketches[index] = np.sort(self.values[index], axis=None)
        return self.sketches[index]

    def has_numbers_of(self, index: int, other: int) -> bool:
        """Return whether two values have the same numbers, in any order; marks, which are 0 or one other number, have
        no more in common than how many they are."""
        sketch = self.sketch(index)
        is_marks = len(np.unique(sketch[sketch != 0])) < 2
        return not is_marks and np.array_equal(sketch, self.sketch(other), equal_nan=True)

    def is_same(self, found: np.ndarray, expected: np.ndarray) -> bool:
        """Return whether two sketches are those of one activation."""
        largest = float(np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
        return _within(found, expected, self.tolerance * largest)

    def agree(self, found: np.ndarray, expected: np.ndarray) -> bool:
        """Return whether two arrays in the same order are one activation."""
        finite = expected[np.isfinite(expected)]
        return _distance(found, expected, float(np.abs(finite).max(initial=0.0))) <= self.tolerance

    def nearest(
        self, ours: np.ndarray, after: int = -1, may_be: Callable[[int], bool] = lambda index: True
    ) -> Match | None:
        """The operation behind `after` whose value is `ours`, if it `may_be`; the nearest, and of several the first."""
        finite = ours[np.isfinite(ours)]
        if not finite.size:  # NaN alone tells nothing
            return None
        expected, largest = np.sort(ours, axis=None), float(np.abs(finite).max())
        best: Match | None = None
        for index in self.by_size.get(ours.size, ()):
            if index <= after or not _within(self.sketch(index), expected, self.tolerance * largest):
                continue
            if not may_be(index):
                continue
            for layout in layouts(ours.shape, self.values[index].shape, self.heads):
                distance = _distance(layout.to_ours(self.values[index]), ours, largest)
                if distance <= self.tolerance and (best is None or distance < best.distance / 2):
                    best = Match(index, layout, distance)
        return best

    def like(self, ours: np.ndarray) -> Iterator[Match]:
        """Every operation whose value has a layout of the shape of `ours`, each array once."""
        seen = set()
        for index in self.by_size.get(ours.size, ()):
            value = self.values[index]
            if np.isinf(value).any() or np.isnan(value).all() or np.ptp(value) == 0:  # one number tells nothing
                continue
            for layout in layouts(ours.shape, self.values[index].shape, self.heads):
                if (numbers := layout.to_ours(value).tobytes()) not in seen:
                    seen.add(numbers)
                    yield Match(index, layout)


def _within(found: np.ndarray, expected: np.ndarray, tolerance: float) -> bool:
    """Return whether two sorted arrays are the same; NaN, which is sorted to the end, is NaN."""
    with np.errstate(invalid="ignore"):
        near = np.abs(found - expected) <= tolerance
    if near.all() or not near.size or not np.isnan(found[-1]):
        return bool(near.all())
    return bool(np.all(near | (np.isnan(found) & np.isnan(expected))))


def _distance(found: np.ndarray, expected: np.ndarray, largest: float) -> float:
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - expected)
    difference = float(np.where(np.isnan(found) & np.isnan(expected), 0.0, apart).max(initial=0.0))
    return difference / largest if largest else difference
