"""Searches of the flow of data between numbered operations."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence


def ancestors(ends: Iterable[int], given: Callable[[int], Iterable[int]], known: Collection[int] = ()) -> set[int]:
    """Return nodes and all that they are made from without passing through a `known` one.

    Args:
        ends: the nodes, which are returned in any case.
        given: yields what one node is made from.
    """
    seen = set(ends)
    waiting = list(seen)
    while waiting:
        new = {each for each in given(waiting.pop()) if each not in known} - seen
        seen |= new
        waiting += new
    return seen


def leading_nowhere(
    nodes: Collection[int], is_goal: Callable[[int], bool], readers: Callable[[int], Iterable[int]]
) -> set[int]:
    """Return the nodes, numbered in the order of a run, that are no goal and from which no reader leads to one."""
    leading = set[int]()
    for node in sorted(nodes, reverse=True):
        if not leading.isdisjoint(readers(node)) or is_goal(node):
            leading.add(node)
    return set(nodes) - leading


def readers_of(inputs: Sequence[Iterable[int]]) -> dict[int, list[int]]:
    """Return, for each node that something is made from, what is made from it at once."""
    found: dict[int, list[int]] = {}
    for index, given in enumerate(inputs):
        for each in given:
            found.setdefault(each, []).append(index)
    return found


def made_from(inputs: Sequence[Iterable[int]], marks: Callable[[int], int] = lambda index: 1 << index) -> list[int]:
    """Return, for each node, the marks of itself and of all that it is made from, as the bits of a number."""
    sets: list[int] = []
    for index, given in enumerate(inputs):
        sets.append(functools.reduce(operator.or_, (sets[each] for each in given), marks(index)))
    return sets
