"""Queries and keys whose features a port keeps in another order: if it is the same in both, all scores are the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from transparity_conformance.identify.alignment.found import Found
from transparity_conformance.matching.layout import layouts
from transparity_conformance.matching.recorded import Match, Recorded

Pair = tuple[np.ndarray, np.ndarray]


def reordered(found: Found) -> dict[str, Match]:
    """The queries and keys that are not `found`, and that the port has with their features in one order.

    Queries alone are not enough: in an order that is not that of the keys, they make other scores.
    """
    matches: dict[str, Match] = {}
    for scores in (tap for tap in found.flow.inputs if tap.endswith(".scores")):
        scope, before = scores.removesuffix("scores"), sorted(found.flow.inputs[scores] - found.matches.keys())
        queries, keys = ([tap for tap in before if tap.startswith(f"{scope}{role}")] for role in ("query", "key"))
        for query, key in itertools.product(queries, keys):
            both = _in_one_order((found.ours[query], found.ours[key]), found.port)
            matches |= dict(zip((query, key), both, strict=False))
    return matches


def _in_one_order(ours: Pair, port: Recorded) -> tuple[Match, ...]:
    """The first values with the numbers of a query and a key and their features in one other order."""
    for pair in itertools.product(*(_with_numbers_of(each, port) for each in ours)):
        query, key = (port.read(match) for match in pair)
        if features := _order(ours, (query, key), port.tolerance):
            turned = (dataclasses.replace(match.layout, features=features) for match in pair)
            return tuple(Match(match.index, layout) for match, layout in zip(pair, turned, strict=True))
    return ()


def _with_numbers_of(ours: np.ndarray, port: Recorded) -> Iterator[Match]:
    """The values with the numbers of a tap, in each order of its axes."""
    for index in port.with_numbers(ours, port.by_size.get(ours.size, ())):
        fits = layouts(ours.shape, port.values[index].shape, port.heads)
        yield from (Match(index, fit) for fit in fits if fit.split == ours.shape)


def _order(ours: Pair, theirs: Pair, tolerance: float) -> tuple[int, ...]:
    """For each feature of ours, the nearest of theirs that is no other's, in query and key together; empty if one has
    none within a relative `tolerance`."""
    wanted, given = _features(ours, ours), _features(theirs, ours)
    order: list[int] = []
    for feature in wanted:
        apart = np.abs(given - feature).max(axis=1)
        apart[order] = np.inf
        order.append(int(apart.argmin()))
        if not apart[order[-1]] <= tolerance:
            return ()
    return tuple(order)


def _features(values: Pair, scales: Pair) -> np.ndarray:
    """The numbers of each feature of a query and a key, relative to the largest of each."""
    largest = [float(np.abs(each).max(initial=0.0)) or 1.0 for each in scales]
    rows = [
        np.moveaxis(value, -1, 0).reshape(value.shape[-1], -1) / size
        for value, size in zip(values, largest, strict=True)
    ]
    return np.concatenate(rows, axis=1)
