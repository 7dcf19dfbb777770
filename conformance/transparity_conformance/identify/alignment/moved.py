"""Taps that were found too early: the port does more to them before it continues, or moves their numbers."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from transparity_conformance.identify.alignment.flow import dependents
from transparity_conformance.identify.alignment.found import Found, Matches
from transparity_conformance.identify.alignment.known_faults import behind_faults, is_reached
from transparity_conformance.matching.layout import layouts
from transparity_conformance.matching.recorded import Match


def rearranged(found: Found, lost: str) -> Matches:
    """The taps in front of the `lost` one whose numbers flow on in other places, as heads that are merged without
    moving the axes, if with these all that is made from them is among the port's values."""
    feeding = [tap for tap in found.matches if lost in dependents(found.probe, found.values, found.ours, tap)]
    for is_any in (True, False):
        misplaced = {tap: _misplaced(found, tap, is_any) for tap in feeding}
        moved = {tap: match for tap, match in misplaced.items() if match is not None}
        behind = {lost}.union(*(found.flow.outputs[tap] for tap in moved))
        if moved and all(is_reached(found.adding(moved), tap) for tap in behind):
            return moved
    return {}


def _misplaced(found: Found, tap: str, is_any: bool) -> Match | None:
    """The first value made from that of a tap that has its numbers in other places.

    Args:
        is_any: whether they are in other places whichever way its axes are read, or only the most natural one.
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
    """A tap that `lost` is made from and that was found too early; or two, as queries and keys that are normalised
    once more."""
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
    """Taps in front of nothing but `moved` ones, and with the value of what they are made from: a norm that the port
    has further on, and not here."""
    return [
        tap
        for tap, match in found.matches.items()
        if found.flow.outputs[tap] and found.flow.outputs[tap] <= moved
        if any(found.index(name) == match.index for name in found.flow.inputs[tap] & found.matches.keys())
    ]
