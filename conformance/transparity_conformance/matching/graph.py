"""Searches in a data-flow graph whose nodes are numbered operations."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Iterable, Sequence


def ancestors(ends: Iterable[int], given: Callable[[int], Iterable[int]], known: Collection[int] = ()) -> set[int]:
    """Return nodes and all their ancestors, without passing through a `known` node.

    Args:
        ends: The nodes; they are always part of the result.
        given: Returns the inputs of one node.
        known: Nodes at which the search stops.
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
    """Return the nodes from which no path through readers leads to a goal. Goals are never returned.

    Nodes are numbered in execution order.
    """
    leading = set[int]()
    for node in sorted(nodes, reverse=True):
        if not leading.isdisjoint(readers(node)) or is_goal(node):
            leading.add(node)
    return set(nodes) - leading


def readers_of(inputs: Sequence[Iterable[int]]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for index, given in enumerate(inputs):
        for each in given:
            found.setdefault(each, []).append(index)
    return found


def made_from(inputs: Sequence[Iterable[int]], marks: Callable[[int], int] = lambda index: 1 << index) -> list[int]:
    """Return, for each node, the bits that mark the node and all its ancestors, combined in one integer."""
    sets: list[int] = []
    for index, given in enumerate(inputs):
        sets.append(functools.reduce(operator.or_, (sets[each] for each in given), marks(index)))
    return sets
