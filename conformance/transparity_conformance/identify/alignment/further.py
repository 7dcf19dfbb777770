"""Move taps to later operations that change their values, but not visibly on the row where taps were found.

For example, a factor before a norm acts only through eps. With ordinary activations, its effect is within rounding.
Other probes have small activations, which show it.
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
"""The taps of a port, by probe."""


def further_on_probes(
    plan: Plan, row: Probe, probes: Mapping[str, Probe], read: Callable[[Plan], Taps], dtype: str, clock: Clock
) -> Plan:
    """Return the plan, with each tap moved to a later value if the taps after it are right only then.

    Args:
        row: the row on which the plan was made.
        read: returns the taps of each probe's call, located by a plan.
        clock: the remaining time.
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
    """Return the taps that differ from the reference by more than rounding on some probe.

    The reference continues from the port's values.
    """
    wrong: set[str] = set()
    for key, shown in taps.items():
        probe, ours = probes[key], walk(probes[key], shown, known)
        gaps = {tap: judged_gap(probe, tap, value, ours[tap], dtype, shown) for tap, value in shown.items()}
        wrong |= {tap for tap, apart in gaps.items() if not apart <= probe.oracle.budget(tap, dtype)}
    return wrong


def _later(found: Found, tap: str) -> Iterator[Match]:
    """Yield later values that equal `tap` with a fault, and through which all later taps depend on `tap`."""
    others, early = found.without([tap]), found.matches[tap]
    ends = [others.index(name) for name in found.flow.outputs[tap] if name in others.matches]
    for match in behind_faults(others, tap, of_weights=False).values():
        is_later = match.index != early.index and found.port.leads_to(early.index, match.index)
        otherwise = ancestors({*ends} - {match.index}, found.port.inputs.__getitem__, {match.index})
        if ends and is_later and early.index not in otherwise:
            yield dataclasses.replace(match, distance=early.distance)
