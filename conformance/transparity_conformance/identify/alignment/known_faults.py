"""Taps behind a known fault: with the fault put into the reference, its value is one of the port's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from transparity_conformance.catalogue import faults_at
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.walk import Impossible, walk
from transparity_conformance.identify.alignment.flow import Flow
from transparity_conformance.identify.alignment.intermediate import intermediates
from transparity_conformance.identify.alignment.values.candidates import Match, PortValues
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe


def behind_faults(
    probe: Probe,
    values: Arrays,
    candidates: PortValues,
    found: Mapping[str, Match],
    tap: str,
    flow: Flow,
    clock: Clock,
    *,
    of_weights: bool = True,
) -> dict[int, Match]:
    """The port's values that are `tap` with some fault of the catalogue, by operation.

    Args:
        values: the port's values at the taps that were `found`.
        clock: the time that is left.
        of_weights: faults of weights as well, with which a port never has the right numbers.
    """

    def admitted(index: int) -> bool:
        return flow.admits(tap, index, candidates, found)

    def on_its_way(index: int) -> bool:
        return admitted(index) and flow.leads_on(tap, index, candidates, found)

    strict: dict[int, Match] = {}
    loose: dict[int, Match] = {}
    for value in _faulty(probe, values, tap, clock, of_weights=of_weights):
        for matches, may_be in ((strict, on_its_way), (loose, admitted)):
            if match := candidates.nearest(value, may_be=may_be):
                matches.setdefault(match.index, match)
                break
    return strict or loose  # an operation that makes another tap makes this one only if no other does


def made_by_a_fault(
    probe: Probe, values: Arrays, candidates: PortValues, matches: Mapping[int, Match], tap: str
) -> Match | None:
    """The last of `matches` that only a fault computes; a right port has scores without their bias, too, on the way."""
    right = [np.sort(each, axis=None) for each in intermediates(probe, values, tap)]
    for index in sorted(matches, reverse=True):
        sketch = candidates.sketch(index)
        if not any(candidates.is_same(sketch, each) for each in right if each.size == sketch.size):
            return matches[index]
    return None


def may_be_chosen(tap: str, value: np.ndarray) -> bool:
    """Return whether a value is one of a choice, which is 0 or 1 everywhere; True of other taps.

    From any other number the reference would weigh all experts, as a port does on its way that has a softmax of all.
    """
    return not is_choice(tap) or bool(np.isin(value, (0, 1)).all())


def followed(
    probe: Probe, values: Arrays, candidates: PortValues, matches: dict[int, Match], tap: str, flow: Flow
) -> dict[int, Match]:
    """Those of `matches` from which the reference makes the port's values behind a choice; all of them of other taps.

    Marks tell nothing by themselves: those of the groups to choose from are those of more experts.
    """
    if not is_choice(tap):
        return matches
    behind = [name for name in flow.reached(tap, values) if name in values]

    def is_followed(match: Match) -> bool:
        chosen = match.layout.to_ours(candidates.values[match.index])
        if any(np.array_equal(values[name] != 0, chosen != 0) for name in flow.outputs[tap] & values.keys()):
            return True  # the weights of these experts, and of no others, whatever is wrong with them
        ours = walk(probe, values | {tap: chosen})
        return bool(behind) and all(candidates.agree(values[name], ours[name]) for name in behind)

    return {index: match for index, match in matches.items() if is_followed(match)}


def is_reached(
    probe: Probe, values: Arrays, candidates: PortValues, found: Mapping[str, Match], tap: str, flow: Flow, clock: Clock
) -> bool:
    """Return whether `tap`, right or with one fault, is among the port's values."""
    if candidates.nearest(walk(probe, values, until=tap)[tap]):
        return True
    faulty = behind_faults(probe, values, candidates, found, tap, flow, clock)
    return made_by_a_fault(probe, values, candidates, faulty, tap) is not None


def _faulty(probe: Probe, values: Arrays, tap: str, clock: Clock, *, of_weights: bool) -> Iterator[np.ndarray]:
    """The value of the reference at `tap` with every fault that can be made there."""
    for fault in faults_at(probe.config, tap):
        clock.check()
        if fault.alter is not None and not of_weights:
            continue
        try:
            yield walk(probe, values, (Hypothesis(fault, (tap,)),), until=tap)[tap]
        except Impossible:
            continue
