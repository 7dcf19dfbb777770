"""The taps of a port that shows its logits alone: every operation is listened to, and the taps are found by value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.diagnosis.faults.wholly_hidden import judged_gap
from transparity_conformance.diagnosis.judge import Actual, Progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.oracle.budgets import epsilon
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.alignment.plan import Plan, plan_of, read
from transparity_conformance.ports.alignment.source import caller, operation_of
from transparity_conformance.ports.alignment.values.candidates import HALF_OF_THE_DIGITS
from transparity_conformance.ports.alignment.values.loops import without_loops
from transparity_conformance.ports.listening.operation import Operation
from transparity_conformance.ports.process.running import run_listening
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Divergence, Report

Forwards = Mapping[int, Callable[..., Any]]
"""The built port, by the identity of the parameters."""


@dataclass(frozen=True, eq=False)
class HeardCall:
    """One call of a port, with all that it computed."""

    operations: Sequence[Operation]
    taps: Arrays
    numbers: Mapping[str, int]
    """The operation that computed each tap."""


@dataclass(frozen=True, eq=False)
class Heard:
    """The calls of all probes by name; none if nothing was heard, and then the reason."""

    calls: Mapping[str, HeardCall]
    notes: tuple[str, ...] = ()


NOT_ASKED = Heard({})


def wrong_logits(probes: Mapping[str, Probe], actual: Actual, dtype: str) -> Divergence | None:
    """The divergence of the logits on the probe where it is largest; None if they are right, or of another shape."""
    worst = Divergence("logits", 0.0, 1.0)
    for key, taps in actual.items():
        oracle, logits = probes[key].oracle, taps["logits"]
        if logits.shape == oracle.expected["logits"].shape:
            error = judged_gap(probes[key], "logits", logits, oracle.expected["logits"])
            budget = oracle.budget("logits", dtype)
            if share(error, budget) > share(worst.error, worst.budget):
                worst = Divergence("logits", error, budget, probe=probes[key].name)
    return worst if share(worst.error, worst.budget) > 1 else None


def hear(
    forwards: Forwards, probes: Mapping[str, Probe], actual: Actual, dtype: str, clock: Clock, progress: Progress
) -> Heard:
    """Listen to a port whose logits are wrong, and which shows nothing else.

    Args:
        actual: what the port showed on each probe, its logits among it.
        clock: the time for finding what lies behind faults.
    """
    first = next(iter(probes.values()))
    if any(len(taps) > 1 for taps in actual.values()):
        return NOT_ASKED
    if first.is_large:
        return Heard({}, ("the port was not listened to, for the model is large; with taps of its own, more is found",))
    try:
        return _heard(forwards, probes, actual, dtype, clock, progress)
    except PortProcessError:
        raise
    except PortError as error:
        return Heard({}, (f"the port could not be listened to: {error}",))


def _heard(
    forwards: Forwards, probes: Mapping[str, Probe], actual: Actual, dtype: str, clock: Clock, progress: Progress
) -> Heard:
    first = next(iter(probes.values()))
    aligned = aligned_probe(first)
    progress("listening to the port", 0, len(probes) + 1)
    taps, operations = run_listening(forwards[id(first.parameters)], aligned)
    if not operations:
        return Heard({}, ("no operation of the port was heard; with taps of its own, more is found",))
    plan = plan_of(aligned, operations, taps["logits"], dtype, clock)
    loops, has_loops = without_loops(aligned, operations), False
    if len(plan.matches) < len(first.oracle.expected) and len(loops) < len(operations):
        other = plan_of(aligned, loops, taps["logits"], dtype, clock)
        has_loops = len(other.matches) > len(plan.matches)
        plan = other if has_loops else plan
    calls = {}
    for done, (key, probe) in enumerate(probes.items()):
        progress("listening to the port", done + 1, len(probes) + 1)
        _, operations = run_listening(forwards[id(probe.parameters)], probe)
        operations = without_loops(probe, operations) if has_loops else operations
        calls[key] = HeardCall(operations, *read(plan, probe, operations, actual[key]["logits"]))
    return Heard(calls, (_found(plan, first),))


def aligned_probe(probe: Probe) -> Probe:
    """The first row of `probe`, in which all tokens are different and nothing is padding."""
    inputs = {name: value[:1] for name, value in probe.inputs.items()}
    if "attention_mask" in inputs:
        inputs["attention_mask"] = np.ones_like(inputs["attention_mask"])
    return dataclasses.replace(probe, name="aligned", purpose="one row without padding", inputs=inputs)


def _found(plan: Plan, probe: Probe) -> str:
    taps = list(probe.oracle.expected)
    absent = [tap for tap in taps if tap not in plan.matches]
    named = f"; not {', '.join(absent[:3])}{', …' if absent[3:] else ''}" if absent else ""
    found = len(taps) - len(absent)
    return f"the port was listened to: {found} of {len(taps)} taps were found by value among its operations{named}"


def with_lines(report: Report, heard: Heard, probes: Mapping[str, Probe]) -> Report:
    """Add the line of the port to every divergence whose operation was heard, and the notes on listening."""
    faults = tuple(_with_line(fault, report, heard, probes) for fault in report.faults)
    return dataclasses.replace(report, faults=faults, notes=(*report.notes, *heard.notes))


def with_first_line(report: Report, heard: Heard, probes: Mapping[str, Probe]) -> Report:
    """Add the line to the first divergence alone, which is quick."""
    faults = tuple(_with_line(fault, report, heard, probes) for fault in report.faults[:1])
    return dataclasses.replace(report, faults=(*faults, *report.faults[1:]))


def _with_line(fault: Divergence, report: Report, heard: Heard, probes: Mapping[str, Probe]) -> Divergence:
    call = heard.calls.get(fault.probe)
    if call is None or fault.where not in call.numbers:
        return fault
    site = fault.causes[0].at if fault.causes and fault.where == "logits" else ""
    if site in call.numbers:  # found in the logits alone: the operation that computes the tap of the fault
        source = call.operations[call.numbers[site]].source
    else:
        segment = (fault.where, fault.error, fault.budget)
        index = operation_of(probes[fault.probe], call.operations, call.taps, call.numbers, *segment)
        source = call.operations[index].source
        if source is not None and _is_gross(fault, call.taps, report.dtype):
            faulty = {each.where for each in report.faults}
            source = caller(call.operations[index].stack, call.operations, call.numbers, faulty)
    return fault if source is None else dataclasses.replace(fault, source=dataclasses.asdict(source))


def _is_gross(fault: Divergence, taps: Arrays, dtype: str) -> bool:
    """Return whether an error is so large that the same line, were it wrong, would show it in every tap."""
    largest = float(np.abs(np.nan_to_num(taps[fault.where])).max(initial=0.0))
    return fault.error > epsilon(dtype) ** HALF_OF_THE_DIGITS * largest
