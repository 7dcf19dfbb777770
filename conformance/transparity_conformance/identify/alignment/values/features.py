"""Queries and keys whose features a port keeps in another order: if it is the same in both, all scores are the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from transparity_conformance.identify.alignment.values.candidates import Match, PortValues
from transparity_conformance.identify.alignment.values.layout import layouts

Pair = tuple[np.ndarray, np.ndarray]


def reordered(
    ours: Mapping[str, np.ndarray],
    candidates: PortValues,
    found: Collection[str],
    inputs: Mapping[str, Collection[str]],
) -> dict[str, Match]:
    """The queries and keys that are not `found`, and that the port has with their features in one order.

    Queries alone are not enough: in an order that is not that of the keys, they make other scores.

    Args:
        inputs: the taps that each tap is made from, without another in between.
    """
    matches: dict[str, Match] = {}
    for scores in (tap for tap in ours if tap.endswith(".scores")):
        scope = scores.removesuffix("scores")
        queries = [tap for tap in inputs[scores] if tap.startswith(f"{scope}query")]
        keys = [tap for tap in inputs[scores] if tap.startswith(f"{scope}key")]
        for query, key in itertools.product(queries, keys):
            if query not in found and key not in found:
                both = _in_one_order((ours[query], ours[key]), candidates)
                matches |= dict(zip((query, key), both, strict=False))
    return matches


def _in_one_order(ours: Pair, candidates: PortValues) -> tuple[Match, ...]:
    """The first values with the numbers of a query and a key and their features in one other order."""
    queries, keys = ([*_with_numbers_of(each, candidates)] for each in ours)
    for query, key in itertools.product(queries, keys):
        theirs = (_read(candidates, query), _read(candidates, key))
        if features := _order(ours, theirs, candidates.tolerance):
            return _with_features(query, features), _with_features(key, features)
    return ()


def _with_numbers_of(ours: np.ndarray, candidates: PortValues) -> Iterator[Match]:
    """The values with the numbers of a tap, in each order of its axes."""
    expected = np.sort(ours, axis=None)
    for index in candidates.by_size.get(ours.size, ()):
        if candidates.is_same(candidates.sketch(index), expected):
            fits = layouts(ours.shape, candidates.values[index].shape, candidates.heads)
            yield from (Match(index, fit) for fit in fits if fit.split == ours.shape)


def _read(candidates: PortValues, match: Match) -> np.ndarray:
    return match.layout.to_ours(candidates.values[match.index])


def _with_features(match: Match, features: tuple[int, ...]) -> Match:
    return dataclasses.replace(match, layout=dataclasses.replace(match.layout, features=features))


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
