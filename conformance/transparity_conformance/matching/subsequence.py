"""The longest common subsequence of two sequences, by the bit-parallel algorithm of Hyyrö (2004)."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return index pairs of a longest common subsequence, in order.

    If several longest subsequences exist, the last elements are paired first.
    """
    ends, end = (len(one), len(other)), _alike(one[::-1], other[::-1])
    begin = _alike(one[: ends[0] - end], other[: ends[1] - end])
    same = [(i, i) for i in range(begin)]
    between = _longest(one[begin : ends[0] - end], other[begin : ends[1] - end])
    return [
        *same,
        *((begin + i, begin + j) for i, j in between),
        *((ends[0] - i, ends[1] - i) for i in range(end, 0, -1)),
    ]


def _alike(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    """Return the length of the longest common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (left, right) in pairs if left != right), min(len(one), len(other)))


def _longest(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: dict[Hashable, int] = {}
    for i, element in enumerate(one):
        places[element] = places.get(element, 0) | 1 << i
    every = (1 << len(one)) - 1
    rows = [every]  # bit i of row j is 0 if `one[i]` lengthens the subsequence with the first j elements of `other`
    for element in other:
        row = rows[-1]
        met = row & places.get(element, 0)
        rows.append(((row + met) | (row - met)) & every)
    i, j, pairs = len(one), len(other), []
    while i and j:
        if one[i - 1] == other[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif rows[j] >> (i - 1) & 1:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]
