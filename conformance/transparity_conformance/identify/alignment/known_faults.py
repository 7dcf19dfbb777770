"""Find taps that a fault of the catalogue explains: with the fault, the reference computes a value of the port."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from transparity_conformance.catalogue import faults_at
from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.diagnosis.walk import Impossible
from transparity_conformance.identify.alignment.found import Found
from transparity_conformance.identify.alignment.intermediate import intermediates
from transparity_conformance.matching.recorded import Match
from transparity_conformance.oracle.near_ties import is_choice

ByOperation = dict[int, Match]


def behind_faults(found: Found, tap: str, *, of_weights: bool = True) -> ByOperation:
    """Return the port's values that equal `tap` with some fault of the catalogue, by operation.

    Args:
        of_weights: whether to try faults of weights too.
    """
    strict: ByOperation = {}
    loose: ByOperation = {}
    for _, value in _faulty(found, tap, of_weights=of_weights):
        on_its_way = lambda index: found.admits(tap, index) and found.leads_on(tap, index)  # noqa: E731
        if match := found.port.nearest(value, may_be=on_its_way):
            strict.setdefault(match.index, match)
        elif match := found.nearest(tap, value):
            loose.setdefault(match.index, match)
    return strict or loose  # An operation that may also be another tap counts only if there is no better operation.


def faults_of(found: Found, tap: str, match: Match) -> Iterator[Hypothesis]:
    """Yield the faults with which the reference computes the value of a match, each at every possible tap."""
    value = found.port.read(match)
    same = [fault for fault, other in _faulty(found, tap, of_weights=False) if found.port.agree(other, value)]
    for fault in same:
        every = ((each, other) for each in found.ours for other in faults_at(found.probe.config, each))
        sites = (each for each, other in every if (other.id, other.variant) == (fault.id, fault.variant))
        yield Hypothesis(fault, tuple(sites))


def made_by_a_fault(found: Found, tap: str, matches: ByOperation) -> Match | None:
    """Return the last of `matches` that only a fault explains.

    A correct port has some of these values too, such as scores before their bias is added.
    """
    wrong = set(matches)
    for each in intermediates(found.probe, found.values, tap) if wrong else ():
        wrong -= set(found.port.with_numbers(each, wrong))
    return matches[max(wrong)] if wrong else None


def may_be_chosen(tap: str, value: np.ndarray) -> bool:
    """Return whether a value may be a choice of experts, which is 0 or 1 everywhere; true for all other taps.

    A port may compute a softmax over all experts first. From such a value, the reference would weight every expert.
    """
    return not is_choice(tap) or bool(np.isin(value, (0, 1)).all())


def followed(found: Found, tap: str, matches: ByOperation) -> ByOperation:
    """Return the `matches` of a choice of experts with which the reference computes the port's later values.

    For other taps, return all matches. The marks of a choice identify nothing by themselves: a choice of groups may
    equal a choice of experts in a larger model.
    """
    if not is_choice(tap):
        return matches
    values = found.values
    behind = [name for name in found.flow.reached(tap, values) if name in values]

    def is_followed(match: Match) -> bool:
        chosen = found.port.read(match)
        if any(np.array_equal(values[name] != 0, chosen != 0) for name in found.flow.outputs[tap] & values.keys()):
            return True  # The weights are nonzero for exactly these experts, even if the weights are wrong.
        ours = found.adding({tap: match}).ours
        return bool(behind) and all(found.port.agree(values[name], ours[name]) for name in behind)

    return {index: match for index, match in matches.items() if is_followed(match)}


def is_reached(found: Found, tap: str) -> bool:
    """Return whether the port computes `tap` from the found taps, correctly or with one fault."""
    if found.port.nearest(found.at(tap)):
        return True
    return made_by_a_fault(found, tap, behind_faults(found, tap)) is not None


def _faulty(found: Found, tap: str, *, of_weights: bool) -> Iterator[tuple[Fault, np.ndarray]]:
    """Yield every fault that can occur at `tap`, and the reference's value with the fault."""
    for fault in faults_at(found.probe.config, tap):
        found.clock.check()
        if fault.alter is not None and not of_weights:
            continue
        try:
            yield fault, found.at(tap, (Hypothesis(fault, (tap,)),))
        except Impossible:
            continue
