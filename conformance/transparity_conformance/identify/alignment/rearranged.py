"""Taps whose numbers are right and in wrong places: heads that are split or merged without moving the axes."""

from __future__ import annotations

import dataclasses

import numpy as np

from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.flow import Flow, dependents
from transparity_conformance.identify.alignment.known_faults import is_reached
from transparity_conformance.identify.alignment.values.candidates import Match, PortValues
from transparity_conformance.identify.alignment.values.layout import layouts
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe


def rearranged(
    probe: Probe,
    values: Arrays,
    candidates: PortValues,
    found: dict[str, Match],
    lost: str,
    flow: Flow,
    clock: Clock,
) -> dict[str, Match]:
    """The taps in front of the `lost` one that flow on in other places, if with these all that is made from them is
    among the port's values.

    Args:
        values: the port's values at the taps that were `found`.
    """
    ours = walk(probe, values)
    feeding = [tap for tap in found if lost in dependents(probe, values, ours, tap)]
    for is_any in (True, False):
        misplaced = {tap: _misplaced(values[tap], candidates, found[tap], is_any) for tap in feeding}
        moved = {tap: match for tap, match in misplaced.items() if match is not None}
        others = {tap: match.layout.to_ours(candidates.values[match.index]) for tap, match in moved.items()}
        behind = {lost}.union(*(flow.outputs[tap] for tap in moved))
        if moved and all(
            is_reached(probe, values | others, candidates, found | moved, tap, flow, clock) for tap in behind
        ):
            return moved
    return {}


def _misplaced(ours: np.ndarray, candidates: PortValues, match: Match, is_any: bool) -> Match | None:
    """The first value made from a match that has its numbers in other places.

    Args:
        is_any: whether they are in other places whichever way its axes are read, or only the most natural one.
    """
    same = {match.index}
    for index in candidates.by_size[ours.size]:
        if index <= match.index or not same & set(candidates.inputs[index]):
            continue
        if not np.array_equal(candidates.sketch(index), candidates.sketch(match.index)):
            continue
        fits = [
            dataclasses.replace(fit, features=match.layout.features)
            for fit in layouts(ours.shape, candidates.values[index].shape, candidates.heads)
        ]
        read = [each.to_ours(candidates.values[index]) for each in (fits if is_any else fits[:1])]
        if fits and not any(np.array_equal(each, ours) for each in read):
            return Match(index, fits[0])
        same.add(index)
    return None
