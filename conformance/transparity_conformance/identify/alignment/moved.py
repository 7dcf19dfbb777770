"""Find taps whose numbers the port moves or changes before it uses them.

For example, a port merges heads in another order. Or it keeps the features of queries and keys in another order, which
leaves the scores unchanged.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np

from transparity_conformance.identify.alignment.flow import dependents
from transparity_conformance.identify.alignment.found import Found, Matches
from transparity_conformance.identify.alignment.known_faults import behind_faults, is_reached
from transparity_conformance.matching.layout import layouts
from transparity_conformance.matching.recorded import Match, Recorded


def rearranged(found: Found, lost: str) -> Matches:
    """Return taps before the tap `lost` whose numbers the port moves, such as heads merged without moving the axes.

    From the moved values, the reference must compute the port's values.
    """
    feeding = [tap for tap in found.matches if lost in dependents(found.probe, found.values, found.ours, tap)]
    for is_any in (True, False):
        misplaced = {tap: _misplaced(found, tap, is_any) for tap in feeding}
        moved = {tap: match for tap, match in misplaced.items() if match is not None}
        behind = {lost}.union(*(found.flow.outputs[tap] for tap in moved))
        if moved and all(is_reached(found.adding(moved), tap) for tap in behind):
            return moved
    return {}


def _misplaced(found: Found, tap: str, is_any: bool) -> Match | None:
    """Return the first value computed from a tap that has the tap's numbers at other places.

    Args:
        is_any: whether to try every order of the axes, not only the least permuted.
    """
    ours, match, port = found.values[tap], found.matches[tap], found.port
    same = {match.index}
    for index in port.by_size[ours.size]:
        if index <= match.index or same.isdisjoint(port.inputs[index]):
            continue
        if not np.array_equal(port.sketch(index), port.sketch(match.index)):
            continue
        fits = layouts(ours.shape, port.values[index].shape, port.heads)
        ways = [Match(index, dataclasses.replace(fit, features=match.layout.features)) for fit in fits]
        if fits and not any(np.array_equal(port.read(way), ours) for way in ways[: None if is_any else 1]):
            return Match(index, fits[0])
        same.add(index)
    return None


def further_on(found: Found, lost: str) -> Matches:
    """Return later values for taps before `lost` that were found too early.

    Two taps may have to move together, such as queries and keys that the port normalizes once more.
    """
    further: dict[str, list[Match]] = {}
    for tap in found.flow.inputs[lost] & found.matches.keys():
        others = found.without([tap])
        faulty, early = behind_faults(others, tap, of_weights=False), found.index(tap)
        later = [match for match in faulty.values() if found.port.leads_to(early, match.index)]
        if chosen := others.most_gaining(tap, later, found.ours):
            return {tap: chosen}
        further[tap] = [match for match in later if match.index != early]
    for one, other in itertools.combinations(sorted(further), 2):
        for matches in itertools.product(further[one], further[other]):
            found.clock.check()
            both = dict(zip((one, other), matches, strict=True))
            end = found.port.nearest(found.adding(both).at(lost), max(each.index for each in matches))
            if end and all(found.port.leads_to(each.index, end.index) for each in matches):
                return both
    return {}


def only_passed(found: Found, moved: set[str]) -> list[str]:
    """Return taps that equal their input and lead only to `moved` taps, such as a norm that the port applies later."""
    return [
        tap
        for tap, match in found.matches.items()
        if found.flow.outputs[tap] and found.flow.outputs[tap] <= moved
        if any(found.index(name) == match.index for name in found.flow.inputs[tap] & found.matches.keys())
    ]


Pair = tuple[np.ndarray, np.ndarray]


def reordered(found: Found) -> dict[str, Match]:
    """Match queries and keys whose features the port keeps in another order.

    Both must have the same order; otherwise the scores would change.
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
    """Return a query and a key of the port whose features are reordered alike; empty if there are none."""
    for pair in itertools.product(*(_with_numbers_of(each, port) for each in ours)):
        query, key = (port.read(match) for match in pair)
        if features := _order(ours, (query, key), port.tolerance):
            turned = (dataclasses.replace(match.layout, features=features) for match in pair)
            return tuple(Match(match.index, layout) for match, layout in zip(pair, turned, strict=True))
    return ()


def _with_numbers_of(ours: np.ndarray, port: Recorded) -> Iterator[Match]:
    """Yield the values that have the numbers of a tap, with each order of axes."""
    for index in port.with_numbers(ours, port.by_size.get(ours.size, ())):
        fits = layouts(ours.shape, port.values[index].shape, port.heads)
        yield from (Match(index, fit) for fit in fits if fit.split == ours.shape)


def _order(ours: Pair, theirs: Pair, tolerance: float) -> tuple[int, ...]:
    """Return, for each of our features, the nearest unused feature of the port, in query and key together.

    The result is empty if some feature has no counterpart within the relative `tolerance`.
    """
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
    """Return the numbers of each feature in a query and a key, each divided by the largest number of its scale."""
    largest = [float(np.abs(each).max(initial=0.0)) or 1.0 for each in scales]
    rows = [
        np.moveaxis(value, -1, 0).reshape(value.shape[-1], -1) / size
        for value, size in zip(values, largest, strict=True)
    ]
    return np.concatenate(rows, axis=1)
