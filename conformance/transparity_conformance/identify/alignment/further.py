"""Taps that one row shows too early: the port does more to them before it goes on, and the numbers of that row do not
tell. A factor in front of a norm shows in eps alone, which is rounding beside ordinary activations, and not beside
those of other probes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping

from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.flow import Flow, flow_of
from transparity_conformance.identify.alignment.found import Found
from transparity_conformance.identify.alignment.known_faults import behind_faults
from transparity_conformance.identify.alignment.plan import Plan, planned
from transparity_conformance.matching.graph import ancestors
from transparity_conformance.matching.recorded import Match
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged_gap

Taps = Mapping[str, Arrays]
"""The taps of a port by the probe."""


def further_on_probes(
    plan: Plan, row: Probe, probes: Mapping[str, Probe], read: Callable[[Plan], Taps], dtype: str, clock: Clock
) -> Plan:
    """The plan in which each tap is the value that the port goes on from, where that makes what follows right.

    Args:
        row: the call that was aligned.
        read: the taps of the calls of `probes` by a plan.
        clock: the time that is left.
    """
    wrong = _wrong_taps(probes, read(plan), dtype, plan.known)
    flow = flow_of(row, plan.known) if wrong else Flow({}, {})
    for tap in [tap for tap in flow.outputs if tap in plan.matches and flow.outputs[tap] & wrong]:
        for match in _later(Found(row, plan.port, flow, clock, plan.matches, plan.known), tap):
            other = planned(plan.port, {**plan.matches, tap: match}, plan.known)
            if not _wrong_taps(probes, read(other), dtype, plan.known) & flow.outputs[tap]:
                plan = other
                break
    return plan


def _wrong_taps(probes: Mapping[str, Probe], taps: Taps, dtype: str, known: Combination) -> set[str]:
    """The taps that the reference makes otherwise from the port's own values, on some probe, by more than rounding."""
    wrong: set[str] = set()
    for key, shown in taps.items():
        probe, ours = probes[key], walk(probes[key], shown, known)
        gaps = {tap: judged_gap(probe, tap, value, ours[tap], dtype, shown) for tap, value in shown.items()}
        wrong |= {tap for tap, apart in gaps.items() if not apart <= probe.oracle.budget(tap, dtype)}
    return wrong


def _later(found: Found, tap: str) -> Iterator[Match]:
    """Later values that are `tap` with a fault of the catalogue, and through which all goes that is made from it."""
    others, early = found.without([tap]), found.matches[tap]
    ends = [others.index(name) for name in found.flow.outputs[tap] if name in others.matches]
    for match in behind_faults(others, tap, of_weights=False).values():
        is_later = match.index != early.index and found.port.leads_to(early.index, match.index)
        otherwise = ancestors({*ends} - {match.index}, found.port.inputs.__getitem__, {match.index})
        if ends and is_later and early.index not in otherwise:
            yield dataclasses.replace(match, distance=early.distance)
