"""Find swapped weights that have the same effect as values swapped later.

Both give the same numbers, so only the names of taps distinguish them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping

from transparity_conformance.catalogue import hypotheses
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.diagnosis.walk import segment_budgets, walk
from transparity_conformance.identify.alignment.heard import AlignedCall, RecordedPort
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Divergence, Report


def with_exchanges(report: Report, heard: RecordedPort, probes: Mapping[str, Probe], actual: Actual) -> Report:
    """Extend each divergence by the swaps of weights that explain the same numbers.

    Args:
        actual: the activations that the port showed by name.
    """
    named = {tap for shown in actual.values() for tap in shown}
    faults = [_with_exchanges(fault, report.dtype, heard, probes, named) for fault in report.faults]
    return dataclasses.replace(report, faults=tuple(faults))


def _with_exchanges(
    fault: Divergence, dtype: str, heard: RecordedPort, probes: Mapping[str, Probe], named: Collection[str]
) -> Divergence:
    calls = {key: call for key, call in heard.calls.items() if fault.where in call.taps}
    if len(fault.causes) != 1 or not calls:
        return fault
    known = {fault.causes[0].mistake, *fault.indistinguishable}
    first = next(iter(calls))
    for rival in _exchanges(probes[first], calls[first], fault.where, named):
        if rival.fault.id in known:
            continue
        if all(_is_same(probes[key], call, fault.where, rival, dtype) for key, call in calls.items()):
            known.add(rival.fault.id)
            tied = (*fault.indistinguishable, rival.fault.id)
            fault = dataclasses.replace(fault, indistinguishable=tied)
    return fault


def _exchanges(probe: Probe, call: AlignedCall, where: str, named: Collection[str]) -> Iterator[Hypothesis]:
    """Yield swaps of two weights in the sublayer of `where` whose taps come before it and were found by value."""
    sublayer, order = where.rpartition(".")[0], list(call.taps)
    before = [tap for tap in order[: order.index(where)] if tap.rpartition(".")[0] == sublayer and tap not in named]
    for hypothesis in hypotheses(probe.config, before):
        if hypothesis.fault.is_mutual and len(hypothesis.sites) == 2:
            yield hypothesis


def _is_same(probe: Probe, call: AlignedCall, where: str, rival: Hypothesis, dtype: str) -> bool:
    """Return whether the reference with swapped weights computes the port's value at `where`.

    The reference continues from the port's other taps, not from the taps of the swapped weights.
    """
    given = {tap: value for tap, value in call.taps.items() if tap not in rival.sites}
    ours = walk(probe, given, (rival,), until=where)[where]
    budgets = segment_budgets(probe, given, dtype, (rival,), until=where, neighbours=min(2, probe.neighbours))
    return share(judged_gap(probe, where, call.taps[where], ours, dtype, given), budgets[where]) <= 1
