"""Search data-flow graphs of numbered operations, and sequences of operations."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence


def ancestors(ends: Iterable[int], given: Callable[[int], Iterable[int]], known: Collection[int] = ()) -> set[int]:
    """Return the nodes `ends` and their ancestors, without passing `known` nodes; `given` returns a node's inputs."""
    seen = set(ends)
    waiting = list(seen)
    while waiting:
        new = {each for each in given(waiting.pop()) if each not in known} - seen
        seen |= new
        waiting += new
    return seen


def leading_nowhere(
    nodes: Collection[int],
    is_goal: Callable[[int], bool],
    readers: Callable[[int], Iterable[int]],
    is_part: Callable[[int], bool] = lambda node: False,
) -> set[int]:
    """Return the nodes whose values reach no goal. Nodes are numbered in execution order. If a value is read only in
    parts (slices), every part must reach a goal."""
    leading, among = set[int](), set(nodes)
    for node in sorted(nodes, reverse=True):
        parts, others = set[int](), set[int]()
        for each in among.intersection(readers(node)):
            (parts if is_part(each) else others).add(each)
        if is_goal(node) or not leading.isdisjoint(others) or (parts and parts <= leading):
            leading.add(node)
    return among - leading


def readers_of(inputs: Sequence[Iterable[int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, given in enumerate(inputs):
        for each in given:
            found.setdefault(each, []).append(index)
    return found


def made_from(inputs: Sequence[Iterable[int]], marks: Callable[[int], int] = lambda index: 1 << index) -> list[int]:
    """Return, for each node, the union of its `marks` and its ancestors' marks. Marks are the bits of an int."""
    sets: list[int] = []
    for index, given in enumerate(inputs):
        sets.append(functools.reduce(operator.or_, (sets[each] for each in given), marks(index)))
    return sets


def common(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Return the index pairs of a longest common subsequence, preferably with late elements."""
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
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (left, right) in pairs if left != right), min(len(one), len(other)))


def _longest(one: Sequence[Hashable], other: Sequence[Hashable]) -> list[tuple[int, int]]:
    places: dict[Hashable, int] = {}
    for i, element in enumerate(one):
        places[element] = places.get(element, 0) | 1 << i
    every = (1 << len(one)) - 1
    rows = [every]  # bit i of row j is 0 if `one[i]` lengthens the common subsequence with `other[:j]`
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
