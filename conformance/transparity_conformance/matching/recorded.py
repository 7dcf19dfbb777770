"""Find activations of the reference among the recorded values of a port, in any order of axes."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.graph import ancestors, made_from, readers_of
from transparity_conformance.matching.values import fingerprint
from transparity_conformance.oracle.budgets import epsilon, rounded_to

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The order of axes in a port: the reference's axes are split into `split`, permuted by `order`, and merged."""

    ours: Shape
    split: Shape
    order: tuple[int, ...]
    features: tuple[int, ...] = ()
    """The index of each feature of the reference in the port; empty for the same order."""

    @property
    def is_in_order(self) -> bool:
        return not self.features and list(self.order) == sorted(self.order)

    def to_ours(self, value: np.ndarray) -> np.ndarray:
        permuted = value.reshape([self.split[axis] for axis in self.order])
        arranged = permuted.transpose(np.argsort(self.order)).reshape(self.ours)
        return arranged[..., self.features] if self.features else arranged


@functools.lru_cache(maxsize=2**14)
def layouts(ours: Shape, theirs: Shape, heads: int) -> tuple[Layout, ...]:
    """Return all layouts of the shape `ours` in the shape `theirs`, least permuted first."""
    if math.prod(ours) != math.prod(theirs):
        return ()
    found = [
        Layout(ours, split, order)
        for split, order in _permuted(ours, heads)
        if _merges([split[axis] for axis in order], theirs)
    ]

    def inversions(layout: Layout) -> int:
        return sum(a > b for a, b in itertools.combinations(layout.order, 2))

    return tuple(sorted(found, key=lambda layout: (inversions(layout), len(layout.split))))


def _permuted(ours: Shape, heads: int) -> Iterator[tuple[Shape, tuple[int, ...]]]:
    """Yield (split axes, order). Features may be split into heads, or into interleaved halves."""
    splits = [ours]
    if len(ours) == 3 and heads > 1 and ours[-1] % heads == 0:
        splits.append((*ours[:-1], heads, ours[-1] // heads))
    for split in splits:
        yield from ((split, order) for order in itertools.permutations(range(len(split))))
    if len(ours) == 4 and ours[-1] % 2 == 0:
        for order in itertools.permutations(range(4)):
            at = order.index(3)
            yield (*ours[:-1], 2, ours[-1] // 2), (*order[:at], 4, 3, *order[at + 1 :])


def _merges(permuted: list[int], theirs: Shape) -> bool:
    """Return whether merging neighboring axes of `permuted` gives `theirs`, except for axes of size 1."""
    remaining = iter(size for size in permuted if size != 1)
    for size in (size for size in theirs if size != 1):
        product = 1
        while product < size:
            product *= next(remaining, size + 1)
        if product != size:
            return False
    return next(remaining, None) is None


HALF_OF_THE_DIGITS = 0.5
"""Two arrays count as the same activation if they agree in this share of the digits. Rounding changes fewer than half
of the digits."""


@dataclass(frozen=True)
class Match:
    """An operation of the port that computes a value of the reference, in some layout."""

    index: int
    layout: Layout
    distance: float = 0.0
    """The largest absolute difference, relative to the reference's largest element."""


@dataclass(frozen=True, eq=False)
class Recorded:
    operations: Sequence[Operation]
    answer: np.ndarray
    heads: int = 1
    dtype: str = "float32"

    @functools.cached_property
    def values(self) -> Sequence[np.ndarray]:
        return [*(each.value for each in self.operations), self.answer]

    @functools.cached_property
    def inputs(self) -> Sequence[Sequence[int]]:
        return [*(each.inputs for each in self.operations), self.made_answer]

    @functools.cached_property
    def keys(self) -> tuple[Hashable, ...]:
        """The names and source lines of all operations, which are equal in layers that run the same code."""
        return (*((each.name, each.source) for each in self.operations), "answer")

    @functools.cached_property
    def made_answer(self) -> tuple[int, ...]:
        """The last operation whose value equals the call's result, or ()."""
        last = range(len(self.operations) - 1, -1, -1)
        flat = np.ravel(self.answer)
        alike = (index for index in last if self.operations[index].value.size == flat.size)
        same = (i for i in alike if np.array_equal(np.ravel(self.operations[i].value), flat, equal_nan=True))
        return tuple(itertools.islice(same, 1))

    @functools.cached_property
    def relevant(self) -> frozenset[int]:
        last = self.made_answer or (len(self.operations) - 1,)
        return frozenset(ancestors(last, lambda index: self.operations[index].inputs))

    @functools.cached_property
    def readers(self) -> Mapping[int, Sequence[int]]:
        return readers_of([each.inputs for each in self.operations])

    @functools.cached_property
    def parts(self) -> frozenset[int]:
        """The operations that only select elements of their single input, such as slices."""
        return frozenset(
            index
            for index, each in enumerate(self.operations)
            if len(each.inputs) == 1
            and each.value.size < (whole := self.operations[each.inputs[0]].value).size
            and np.isin(each.value, whole).all()
        )

    @functools.cached_property
    def prints(self) -> dict[int, np.ndarray | None]:
        """The fingerprints of all values, except integers computed from fractions, which may be equal by chance."""
        found, has_fraction = dict[int, np.ndarray | None](), set[int]()
        for index, each in enumerate(self.operations):
            is_whole = np.array_equal(each.value, np.round(each.value))
            if not is_whole or not has_fraction.isdisjoint(each.inputs):
                has_fraction.add(index)
            found[index] = None if is_whole and index in has_fraction else fingerprint(each.value)
        return found

    @functools.cached_property
    def rounded(self) -> dict[str, list[np.ndarray]]:
        """The recorded values that bfloat16 or float16 represents exactly."""
        values = [self.operations[i].value for i in sorted(self.relevant) if self.prints[i] is not None]
        with np.errstate(over="ignore"):
            return {
                dtype: [value for value in values if np.array_equal(rounded_to(value, dtype), value)]
                for dtype in ("bfloat16", "float16")
            }

    @functools.cached_property
    def by_size(self) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for index, value in enumerate(self.values):
            found.setdefault(value.size, []).append(index)
        return found

    @functools.cached_property
    def _made_from(self) -> list[int]:
        return made_from(self.inputs)

    @functools.cached_property
    def _sketches(self) -> dict[int, np.ndarray]:
        return {}

    @property
    def tolerance(self) -> float:
        """The largest relative difference of two values of one activation."""
        return epsilon(self.dtype) ** HALF_OF_THE_DIGITS

    def leads_to(self, index: int, later: int) -> bool:
        return bool(self._made_from[later] >> index & 1)

    def sketch(self, index: int) -> np.ndarray:
        """Return the sorted elements, which do not depend on the order of axes."""
        if index not in self._sketches:
            self._sketches[index] = np.sort(self.values[index], axis=None)
        return self._sketches[index]

    def read(self, match: Match) -> np.ndarray:
        return match.layout.to_ours(self.values[match.index])

    def has_numbers_of(self, index: int, other: int) -> bool:
        """Return whether two values have the same elements, with more than one nonzero number, in any order."""
        sketch = self.sketch(index)
        is_marks = len(np.unique(sketch[sketch != 0])) < 2
        return not is_marks and np.array_equal(sketch, self.sketch(other), equal_nan=True)

    def with_numbers(self, ours: np.ndarray, indices: Iterable[int]) -> Iterator[int]:
        """Yield the `indices` of values with the elements of `ours`, some of which are finite, in any order."""
        alike = [index for index in indices if self.values[index].size == ours.size]
        if alike and np.isfinite(ours).any():
            expected, allowed = np.sort(ours, axis=None), self.tolerance * largest(ours)
            yield from (index for index in alike if is_near(self.sketch(index), expected, allowed))

    def agree(self, found: np.ndarray, expected: np.ndarray) -> bool:
        return _distance(found, expected, largest(expected)) <= self.tolerance

    def nearest(
        self, ours: np.ndarray, after: int = -1, may_be: Callable[[int], bool] = lambda index: True
    ) -> Match | None:
        """Return the nearest match after `after`; a later match must be less than half as far from `ours`."""
        best: Match | None = None
        scale, later = largest(ours), (index for index in self.by_size.get(ours.size, ()) if index > after)
        for index in self.with_numbers(ours, later):
            for layout in layouts(ours.shape, self.values[index].shape, self.heads) if may_be(index) else ():
                distance = _distance(layout.to_ours(self.values[index]), ours, scale)
                if distance <= self.tolerance and (best is None or distance < best.distance / 2):
                    best = Match(index, layout, distance)
        return best

    def equal(
        self, ours: Mapping[str, np.ndarray], may_be: Callable[[int], bool] = lambda index: True
    ) -> dict[str, Match]:
        nearest = {name: self.nearest(value, may_be=may_be) for name, value in ours.items()}
        return {name: match for name, match in nearest.items() if match}

    def like(self, ours: np.ndarray) -> Iterator[Match]:
        """Yield the port's values that fit a layout of `ours`; skip duplicates, constants and infinite values."""
        seen = set()
        for index in self.by_size.get(ours.size, ()):
            value = self.values[index]
            if np.isinf(value).any() or np.isnan(value).all() or np.ptp(value) == 0:  # a constant identifies nothing
                continue
            for layout in layouts(ours.shape, self.values[index].shape, self.heads):
                if (numbers := layout.to_ours(value).tobytes()) not in seen:
                    seen.add(numbers)
                    yield Match(index, layout)


def is_near(one: np.ndarray, other: np.ndarray, allowed: float) -> bool:
    """Return whether two arrays differ by at most `allowed`. Equal infinities, and two NaNs, count as equal."""
    if one.size and one.shape == other.shape:  # a quick test, because most unequal pairs differ in the middle
        middle = one.size // 2
        if abs(one.item(middle) - other.item(middle)) > allowed and one.item(middle) != other.item(middle):
            return False
    with np.errstate(invalid="ignore"):
        far = ~(np.abs(one - other) <= allowed)
    a, b = one[far], other[far]
    return bool(np.all((a == b) | (np.isnan(a) & np.isnan(b))))


def largest(value: np.ndarray) -> float:
    return float(np.abs(value[np.isfinite(value)]).max(initial=0.0))


def _distance(found: np.ndarray, expected: np.ndarray, scale: float) -> float:
    with np.errstate(invalid="ignore"):
        apart = np.abs(found - expected)
    difference = float(np.where(np.isnan(found) & np.isnan(expected), 0.0, apart).max(initial=0.0))
    return difference / scale if scale else difference
