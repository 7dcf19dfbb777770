"""Where the rows of one model's tensors are in another's: as rows or columns, in one tensor or in several."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Located:
    """A tensor in terms of those of the other model."""

    names: tuple[str, ...]
    take: Callable[[Mapping[str, np.ndarray]], np.ndarray]
    """Take it from tensors like those."""


@dataclass(frozen=True, eq=False)
class Lines:
    """The rows, or the columns, of a tensor seen as a matrix; a vector is one row."""

    name: str
    matrix: tuple[int, int]
    is_columns: bool
    hashes: np.ndarray
    """One number for each line, equal for equal ones."""

    def of(self, tensor: np.ndarray) -> np.ndarray:
        """The lines of a tensor of its shape: (lines, numbers)."""
        rows = tensor.reshape(self.matrix)
        return rows.T if self.is_columns else rows


def found_by_rows(wanted: Mapping[str, np.ndarray], given: Mapping[str, np.ndarray]) -> dict[str, Located]:
    """How to take each `wanted` tensor from tensors like those `given`, if they have all its numbers in one place.

    A tensor is found as a whole, or line by line if none of its lines is in two places.
    """
    vectors = {value.size for value in wanted.values() if value.ndim == 1}
    every = [lines for name, value in given.items() for lines in _lines(name, value, vectors)]
    if not every:
        return {}
    places = _Places(every)
    found = {name: _place(_lines(name, value), places, value.shape) for name, value in wanted.items()}
    return {name: taken for name, taken in found.items() if taken is not None}


class _Places:
    """Where each line of all tensors is."""

    def __init__(self, every: list[Lines]) -> None:
        self.every = every
        self.owners = np.repeat(np.arange(len(every)), [len(each.hashes) for each in every])
        self.indices = np.concatenate([np.arange(len(each.hashes)) for each in every])
        hashes = np.concatenate([each.hashes for each in every])
        self.unique, self.first, self.counts = np.unique(hashes, return_index=True, return_counts=True)


def _place(own: list[Lines], places: _Places, shape: tuple[int, ...]) -> Located | None:
    for lines in own:
        whole = [each for each in places.every if np.array_equal(each.hashes, lines.hashes)]
        if len({each.name for each in whole}) == 1:
            return _whole(whole[0], lines, shape)
    for lines in own:
        at = np.minimum(np.searchsorted(places.unique, lines.hashes), len(places.unique) - 1)
        if np.array_equal(places.unique[at], lines.hashes) and (places.counts[at] == 1).all():
            first = places.first[at]
            return _in_parts(places.every, places.owners[first], places.indices[first], lines, shape)
    return None


def _whole(place: Lines, own: Lines, shape: tuple[int, ...]) -> Located:
    return Located((place.name,), lambda tensors: _shaped(place.of(tensors[place.name]), own, shape))


def _in_parts(
    every: list[Lines], owners: np.ndarray, indices: np.ndarray, own: Lines, shape: tuple[int, ...]
) -> Located:
    def take(tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = {owner: every[owner].of(tensors[every[owner].name]) for owner in np.unique(owners)}
        found = [parts[owner][index] for owner, index in zip(owners, indices, strict=True)]
        return _shaped(np.stack(found), own, shape)

    return Located(tuple(dict.fromkeys(every[owner].name for owner in np.unique(owners))), take)


def _shaped(lines: np.ndarray, own: Lines, shape: tuple[int, ...]) -> np.ndarray:
    return (lines.T if own.is_columns else lines).reshape(shape)


def _lines(name: str, tensor: np.ndarray, vectors: Collection[int] = ()) -> list[Lines]:
    """Its lines in all matrices that it is: one of three axes (embed, heads, head_dim) is two.

    One of several axes with as many numbers as a wanted vector may be that.
    """
    found = []
    for matrix in dict.fromkeys(_matrices(tensor, vectors)):
        rows = tensor.reshape(matrix)
        found.append(Lines(name, matrix, False, _hashes(rows)))
        if matrix[0] > 1:
            found.append(Lines(name, matrix, True, _hashes(rows.T)))
    return found


def _matrices(tensor: np.ndarray, vectors: Collection[int]) -> Iterator[tuple[int, int]]:
    if tensor.size and (tensor.ndim == 1 or tensor.size in vectors):
        yield 1, tensor.size
    for axis in range(1, tensor.ndim if tensor.size and tensor.ndim in (2, 3) else 0):
        yield math.prod(tensor.shape[:axis]), math.prod(tensor.shape[axis:])


def _hashes(rows: np.ndarray) -> np.ndarray:
    """One number for each row (rows, numbers), the same for equal ones in any memory order."""
    factors = np.random.default_rng(rows.shape[1]).integers(2**63, size=rows.shape[1], dtype=np.uint64) | np.uint64(1)
    found, size = np.zeros(len(rows), np.uint64), max(1, 2**22 // max(1, rows.shape[1]))
    for begin in range(0, len(rows), size):
        some = np.ascontiguousarray(rows[begin : begin + size] + np.float32(0), np.float32)  # of −0, too
        found[begin : begin + size] = (some.view(np.uint32).astype(np.uint64) * factors).sum(1)
    return found
