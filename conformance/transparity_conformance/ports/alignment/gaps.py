"""Taps between two faults, which no value tells: found by the flow of data alone.

A tap that is wrong itself, and whose next tap is made wrongly from it, equals nothing in the reference. But what it is
made from and what is made from it are known: it is the last value of its size that depends on the one and leads to the
other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.alignment.candidates import Candidates, Match
from transparity_conformance.ports.alignment.flow import Flow
from transparity_conformance.ports.alignment.layout import layouts


def between(
    probe: Probe, values: Arrays, candidates: Candidates, found: Mapping[str, Match], lost: Sequence[str], flow: Flow
) -> dict[str, Match]:
    """The `lost` taps that the flow of data tells, those nearest to what follows first.

    Args:
        values: the port's values at the taps that were `found`.
    """
    known = dict(found)
    ours = walk(probe, values)
    depends = {tap: flow.reached(tap, found) for tap in found}
    for tap in reversed(lost):
        made_from = {known[name].index for name in found if tap in depends[name]}
        flows = frontiers(candidates, known)
        ends = [known[name].index for name in flow.outputs[tap] if name in known]
        behind = _leading_to(candidates, [match.index for match in known.values()])
        for index in reversed(candidates.by_size.get(ours[tap].size, [])):
            fits = layouts(ours[tap].shape, candidates.values[index].shape, candidates.heads)
            is_common = all(candidates.leads_to(index, end) for end in ends)
            if fits and made_from and index in behind and flows[index] == made_from and is_common:
                known[tap] = _first_of_same(ours[tap].shape, candidates, Match(index, fits[0]))
                break
    return {tap: match for tap, match in known.items() if tap not in found}


def _first_of_same(shape: tuple[int, ...], candidates: Candidates, match: Match) -> Match:
    """The operation that computed the numbers of `match`, which later ones only move."""
    for index in candidates.inputs[match.index]:
        fits = layouts(shape, candidates.values[index].shape, candidates.heads)
        if fits and np.array_equal(candidates.sketch(index), candidates.sketch(match.index)):
            return _first_of_same(shape, candidates, Match(index, fits[0]))
    return match


def frontiers(candidates: Candidates, found: Mapping[str, Match]) -> list[set[int]]:
    """For each operation, the operations of the found taps that its value is made from; of a found one, itself."""
    known = {match.index for match in found.values()}
    flow: list[set[int]] = []
    for index, inputs in enumerate(candidates.inputs):
        flow.append({index} if index in known else set().union(*(flow[each] for each in inputs)))
    return flow


def _leading_to(candidates: Candidates, known: Sequence[int]) -> set[int]:
    """The operations from which a known one is made without passing through another, themselves not known."""
    reached: set[int] = set()
    waiting = [each for index in known for each in candidates.inputs[index]]
    while waiting:
        index = waiting.pop()
        if index not in reached and index not in known:
            reached.add(index)
            waiting += candidates.inputs[index]
    return reached
