"""Taps whose numbers are right and in wrong places: heads that are split or merged without moving the axes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.alignment.candidates import Candidates, Match
from transparity_conformance.ports.alignment.gaps import dependents
from transparity_conformance.ports.alignment.layout import layouts


def rearranged(
    probe: Probe, values: Arrays, candidates: Candidates, found: Mapping[str, Match], lost: str
) -> dict[str, Match]:
    """The taps in front of the `lost` one that flow on in other places, if with these it is among the port's values.

    Args:
        values: the port's values at the taps that were `found`.
    """
    ours = walk(probe, values)
    feeding = [tap for tap in found if lost in dependents(probe, values, ours, tap)]
    moved = {tap: match for tap in feeding if (match := _misplaced(values[tap], candidates, found[tap])) is not None}
    if not moved:
        return {}
    others = {tap: match.layout.to_ours(candidates.values[match.index]) for tap, match in moved.items()}
    return moved if candidates.nearest(walk(probe, values | others)[lost]) else {}


def _misplaced(ours: np.ndarray, candidates: Candidates, match: Match) -> Match | None:
    """The first value made from a match that has its numbers in other places, whichever way its axes are read."""
    same = {match.index}
    for index in candidates.by_size[ours.size]:
        if index <= match.index or not same & set(candidates.inputs[index]):
            continue
        if not np.array_equal(candidates.sketch(index), candidates.sketch(match.index)):
            continue
        fits = layouts(ours.shape, candidates.values[index].shape, candidates.heads)
        if fits and not any(np.array_equal(each.to_ours(candidates.values[index]), ours) for each in fits):
            return Match(index, fits[0])
        same.add(index)
    return None
