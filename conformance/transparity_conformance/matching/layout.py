"""Layouts: the orders of axes in which a port may store an activation."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """An activation's axes, refined to `split`, permuted by `order`, and merged to the port's shape."""

    ours: Shape
    split: Shape
    order: tuple[int, ...]
    features: tuple[int, ...] = ()
    """For each of our features, its index among the port's; empty if the order is the same."""

    @property
    def is_in_order(self) -> bool:
        """Return whether no axis and no feature is moved."""
        return not self.features and list(self.order) == sorted(self.order)

    def to_ours(self, value: np.ndarray) -> np.ndarray:
        """Return the port's value in our shape."""
        permuted = value.reshape([self.split[axis] for axis in self.order])
        arranged = permuted.transpose(np.argsort(self.order)).reshape(self.ours)
        return arranged[..., self.features] if self.features else arranged


@functools.lru_cache(maxsize=2**14)
def layouts(ours: Shape, theirs: Shape, heads: int) -> tuple[Layout, ...]:
    """Return all layouts of an activation of shape `ours` in an array of shape `theirs`, the least permuted first.

    Args:
        ours: The shape of our activation.
        theirs: The shape of the port's array.
        heads: The number of heads into which features may be split.
    """
    if math.prod(ours) != math.prod(theirs):
        return ()
    found = [
        Layout(ours, split, order)
        for split, order in _permuted(ours, heads)
        if _merges([split[axis] for axis in order], theirs)
    ]
    return tuple(sorted(found, key=lambda layout: (_inversions(layout.order), len(layout.split))))


def _permuted(ours: Shape, heads: int) -> Iterator[tuple[Shape, tuple[int, ...]]]:
    """Yield the refined axes in every order; the two halves of a head's features may be interleaved."""
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
    """Return whether merging neighboring axes of `permuted` gives `theirs`; axes of size 1 are ignored."""
    remaining = iter(size for size in permuted if size != 1)
    for size in (size for size in theirs if size != 1):
        product = 1
        while product < size:
            product *= next(remaining, size + 1)
        if product != size:
            return False
    return next(remaining, None) is None


def _inversions(order: tuple[int, ...]) -> int:
    return sum(a > b for a, b in itertools.combinations(order, 2))
