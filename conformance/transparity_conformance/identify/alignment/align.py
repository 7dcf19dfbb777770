"""Alignment and walk, alternating: behind a fault the reference goes on from the port's own value."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.flow import Flow, flow_of
from transparity_conformance.identify.alignment.gaps import between
from transparity_conformance.identify.alignment.known_faults import (
    behind_faults,
    followed,
    made_by_a_fault,
    may_be_chosen,
)
from transparity_conformance.identify.alignment.layers import repeated
from transparity_conformance.identify.alignment.rearranged import rearranged
from transparity_conformance.identify.alignment.values.candidates import Match, PortValues
from transparity_conformance.identify.alignment.values.features import reordered
from transparity_conformance.identify.alignment.values.layout import Layout
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe


def align(probe: Probe, candidates: PortValues, clock: Clock) -> dict[str, Match]:
    """Find the reference's taps among the values of a port; those behind a fault from the port's own value on.

    Args:
        candidates: everything that the port computed; the last value is its answer.
        clock: the time for what lies behind faults.
    """
    found: dict[str, Match] = {}
    by_value: set[str] = set()
    left_out: set[str] = set()
    flow = flow_of(probe)
    with contextlib.suppress(OutOfTime):
        _alternate(probe, candidates, found, by_value, left_out, flow, clock)
    answer = len(candidates.values) - 1
    ours = walk(probe, {})
    shape = ours["logits"].shape
    found["logits"] = Match(answer, Layout(shape, shape, tuple(range(len(shape)))))
    lost = flow.without_consequence(found, by_value - {"logits"})
    same = {tap: repeated(probe.config, candidates, found, tap, flow) for tap in lost}
    found |= {tap: match for tap, match in same.items() if match}
    lost = [tap for tap in ours if tap not in found and (tap in lost or not flow.inputs[tap])]
    lost = _without_choices(lost, found, flow)
    guessed = between(probe, recorded(candidates, found), candidates, found, lost, flow)
    with contextlib.suppress(OutOfTime):
        rest = {tap: guessed.get(tap) for tap in ours if tap not in found and tap not in left_out}
        _fill(probe, candidates, found, rest, flow, clock)
    found = guessed | found
    found = {tap: found[tap] for tap in ours if tap in found}
    astray = _told_apart(candidates, found, flow)
    with contextlib.suppress(OutOfTime):
        _exchange(probe, candidates, found, astray, flow, clock)
    return {tap: found[tap] for tap in ours if tap in found}


def _without_choices(lost: Sequence[str], found: Collection[str], flow: Flow) -> list[str]:
    """The taps that the flow of data may tell: no choice, and nothing made from one that was not found.

    A port that gathers the weights of few experts has those of all of them on its way, and never those of the tap.
    """
    unknown = {tap for tap in flow.outputs if is_choice(tap) and tap not in found}
    return [tap for tap in lost if not is_choice(tap) and not flow.inputs[tap] & unknown]


def _told_apart(candidates: PortValues, found: dict[str, Match], flow: Flow) -> list[str]:
    """Change the matches of equal numbers in two places such that each leads to what is made from its tap; return those
    that do so in no place."""
    astray = []
    for tap, match in found.items():

        def on_its_way(index: int, tap: str = tap) -> bool:
            others = {name: each for name, each in found.items() if each.index != index}
            return flow.admits(tap, index, candidates, found) and flow.leads_on(tap, index, candidates, others)

        if not on_its_way(match.index):
            value = match.layout.to_ours(candidates.values[match.index])
            other = candidates.nearest(value, may_be=on_its_way)
            astray += [] if other else [tap]
            found[tap] = other or match
    return astray


def _exchange(
    probe: Probe, candidates: PortValues, found: dict[str, Match], astray: Sequence[str], flow: Flow, clock: Clock
) -> None:
    """Find what has the numbers of other taps, as keys and values whose weights are exchanged, where it leads on."""
    kept = {tap: match for tap, match in found.items() if tap not in astray}
    for tap in astray:
        faulty = behind_faults(probe, recorded(candidates, kept), candidates, kept, tap, flow, clock)
        if match := _the_only(faulty):
            found[tap] = kept[tap] = match


def _alternate(
    probe: Probe,
    candidates: PortValues,
    found: dict[str, Match],
    by_value: set[str],
    left_out: set[str],
    flow: Flow,
    clock: Clock,
) -> None:
    """Add to `found` what has the reference's numbers, and then the tap behind which more of them will have; to
    `left_out` the taps that the port does not compute there."""
    while True:
        while equal := _equal(probe, candidates, found, flow):
            by_value |= set(equal)
            found |= equal
        lost = flow.without_consequence(found, set(found))
        if not lost:
            return
        resumed = rearranged(probe, recorded(candidates, found), candidates, found, lost[0], flow, clock)
        resumed = resumed or _further_on(probe, candidates, found, lost[0], flow, clock)
        resumed = resumed or _resume(probe, candidates, found, lost, flow, clock)
        if not resumed:
            return
        for tap in _only_passed(found, resumed.keys() & found.keys(), flow):
            left_out.add(tap)
            del found[tap]
        found |= resumed


def _equal(probe: Probe, candidates: PortValues, found: Mapping[str, Match], flow: Flow) -> dict[str, Match]:
    """What has the reference's numbers; if nothing more has, queries and keys that have them in another order."""
    ours = walk(probe, recorded(candidates, found))
    return equal_taps(ours, candidates, found) or reordered(ours, candidates, found, flow.inputs)


def _only_passed(found: Mapping[str, Match], moved: Collection[str], flow: Flow) -> list[str]:
    """Taps in front of nothing but `moved` ones, and with the value of what they are made from: a norm that the port
    has further on, and not here."""
    return [
        tap
        for tap in found
        if flow.outputs[tap] and flow.outputs[tap] <= set(moved)
        if any(found[name].index == found[tap].index for name in flow.inputs[tap] & found.keys())
    ]


def _fill(
    probe: Probe,
    candidates: PortValues,
    found: dict[str, Match],
    guessed: Mapping[str, Match | None],
    flow: Flow,
    clock: Clock,
) -> None:
    """Add the taps between faults to `found`: those with the numbers of one fault, the others as they are `guessed`.

    A tap may be wrong without a consequence, as scores that are shifted before a softmax.
    """
    for tap, guess in guessed.items():
        values = recorded(candidates, found)
        ours = walk(probe, values, until=tap)[tap]
        faulty = behind_faults(probe, values, candidates, found, tap, flow, clock)
        faulty = followed(probe, values, candidates, faulty, tap, flow)
        match = candidates.nearest(ours, may_be=lambda index, tap=tap: flow.admits(tap, index, candidates, found))  # type: ignore[misc]
        match = match or made_by_a_fault(probe, values, candidates, faulty, tap) or guess or _the_only(faulty)
        if match is not None:
            found[tap] = match


def _the_only(matches: Mapping[int, Match]) -> Match | None:
    return next(iter(matches.values())) if len(matches) == 1 else None


def recorded(candidates: PortValues, found: Mapping[str, Match]) -> Arrays:
    """The port's values at the taps that were found, in the shapes of the taps."""
    return {tap: match.layout.to_ours(candidates.values[match.index]) for tap, match in found.items()}


def equal_taps(
    ours: Mapping[str, np.ndarray],
    candidates: PortValues,
    found: Mapping[str, Match],
    may_be: Callable[[int], bool] = lambda index: True,
) -> dict[str, Match]:
    """The taps that are not `found` and whose numbers are among the port's, at an operation that `may_be` theirs."""
    nearest = {tap: candidates.nearest(value, may_be=may_be) for tap, value in ours.items() if tap not in found}
    return {tap: match for tap, match in nearest.items() if match}


def _further_on(
    probe: Probe, candidates: PortValues, found: Mapping[str, Match], lost: str, flow: Flow, clock: Clock
) -> dict[str, Match]:
    """A tap that `lost` is made from and that was found too early: the port does more to it before it goes on."""
    ours = walk(probe, recorded(candidates, found))
    further: dict[str, list[Match]] = {}
    for tap in flow.inputs[lost] & found.keys():
        others = {name: match for name, match in found.items() if name != tap}
        values = recorded(candidates, others)
        faulty = behind_faults(probe, values, candidates, others, tap, flow, clock, of_weights=False)
        later = [match for match in faulty.values() if candidates.leads_to(found[tap].index, match.index)]
        if chosen := _most_gaining(probe, values, candidates, others, tap, ours, later, flow, clock):
            return {tap: chosen}
        further[tap] = [match for match in later if match.index != found[tap].index]
    return _further_together(probe, candidates, found, lost, further, clock)


def _further_together(
    probe: Probe,
    candidates: PortValues,
    found: Mapping[str, Match],
    lost: str,
    further: Mapping[str, Sequence[Match]],
    clock: Clock,
) -> dict[str, Match]:
    """Two taps that `lost` is made from, both found too early: queries and keys that are normalised once more."""
    for one, other in itertools.combinations(sorted(further), 2):
        for matches in itertools.product(further[one], further[other]):
            clock.check()
            both = dict(zip((one, other), matches, strict=True))
            ours = walk(probe, recorded(candidates, {**found, **both}), until=lost)[lost]
            match = candidates.nearest(ours, max(each.index for each in matches))
            if match and all(candidates.leads_to(each.index, match.index) for each in matches):
                return both
    return {}


def _resume(
    probe: Probe, candidates: PortValues, found: Mapping[str, Match], lost: list[str], flow: Flow, clock: Clock
) -> dict[str, Match]:
    """The first lost tap for which one of the port's values makes a later tap of the reference one of the port's, or
    which the same code computes in another layer."""
    values = recorded(candidates, found)
    ours = walk(probe, values)
    for tap in lost:
        faulty = behind_faults(probe, values, candidates, found, tap, flow, clock)
        chosen = _most_gaining(probe, values, candidates, found, tap, ours, [*faulty.values()], flow, clock)
        faulty = followed(probe, values, candidates, faulty, tap, flow)
        chosen = chosen or made_by_a_fault(probe, values, candidates, faulty, tap)
        if chosen is None:
            like = [
                match
                for match in candidates.like(ours[tap])
                if may_be_chosen(tap, match.layout.to_ours(candidates.values[match.index]))
                if flow.admits(tap, match.index, candidates, found) and flow.keeps_features(tap, match, found)
            ]
            chosen = _most_gaining(probe, values, candidates, found, tap, ours, like, flow, clock)
        chosen = chosen or repeated(probe.config, candidates, found, tap, flow)
        if chosen is not None:
            return {tap: chosen}
    return {}


def _most_gaining(
    probe: Probe,
    values: Arrays,
    candidates: PortValues,
    found: Mapping[str, Match],
    tap: str,
    ours: Mapping[str, np.ndarray],
    matches: Sequence[Match],
    flow: Flow,
    clock: Clock,
) -> Match | None:
    """The match at `tap` with which most further taps are among the port's values; None if with none of them any is."""
    most, chosen = 0, None
    for match in matches:
        clock.check()
        value = match.layout.to_ours(candidates.values[match.index])
        resumed = walk(probe, values | {tap: value})
        gained = _gained(resumed, ours, candidates, found, tap, match.index, value, flow)
        if gained > most:  # of values that differ by what a norm or a softmax removes, the first is the tap
            most, chosen = gained, match
    return chosen


def _gained(
    resumed: Mapping[str, np.ndarray],
    ours: Mapping[str, np.ndarray],
    candidates: PortValues,
    found: Mapping[str, Match],
    tap: str,
    after: int,
    resumed_at: np.ndarray,
    flow: Flow,
) -> int:
    """The number of taps behind `tap` that are among the port's values only now, and not behind one that is not."""
    changed = [
        name for name in resumed if name != tap and not np.array_equal(resumed[name], ours[name], equal_nan=True)
    ]
    gained, absent = 0, set[str]()
    for name in changed:
        if name in absent:
            continue
        if np.array_equal(resumed[name], resumed_at, equal_nan=True):  # the same activation under another name
            continue
        match = candidates.nearest(resumed[name], after)
        if match is None or not candidates.leads_to(after, match.index):
            absent |= flow.behind[name]
            continue
        if name in found and found[name].index != match.index:
            break
        gained += name not in found
    return gained
