"""The taps of a port that shows its logits alone: every operation is listened to, and the taps are found by value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity_conformance.capabilities.stranger import PortError, PortProcessError
from transparity_conformance.diagnosis.faults.wholly_hidden import judged_gap
from transparity_conformance.diagnosis.judge import Actual, Progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.alignment.forms.loops import without_loops
from transparity_conformance.ports.alignment.plan import Plan, plan_of, read
from transparity_conformance.ports.alignment.source import operation_of, told_apart
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


def hear(
    forwards: Forwards, probes: Mapping[str, Probe], actual: Actual, dtype: str, budget: float, progress: Progress
) -> Heard:
    """Listen to a port whose logits are wrong, and which shows nothing else.

    Args:
        actual: what the port showed on each probe, its logits among it.
        budget: seconds for finding what lies behind faults.
    """
    first = next(iter(probes.values()))
    shows_taps = any(len(taps) > 1 for taps in actual.values())
    if shows_taps or not any(_is_wrong(probes[key], taps["logits"], dtype) for key, taps in actual.items()):
        return NOT_ASKED
    if first.is_large:
        return Heard({}, ("the port was not listened to, for the model is large; with taps of its own, more is found",))
    try:
        return _heard(forwards, probes, actual, dtype, Clock(budget), progress)
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


def _is_wrong(probe: Probe, logits: np.ndarray, dtype: str) -> bool:
    expected = probe.oracle.expected["logits"]
    if logits.shape != expected.shape:
        return False  # there is no number to explain
    return share(judged_gap(probe, "logits", logits, expected), probe.oracle.budget("logits", dtype)) > 1


def _found(plan: Plan, probe: Probe) -> str:
    taps = list(probe.oracle.expected)
    absent = [tap for tap in taps if tap not in plan.matches]
    named = f"; not {', '.join(absent[:3])}{', …' if absent[3:] else ''}" if absent else ""
    found = len(taps) - len(absent)
    return f"the port was listened to: {found} of {len(taps)} taps were found by value among its operations{named}"


def with_lines(report: Report, heard: Heard, probes: Mapping[str, Probe]) -> Report:
    """Add the line of the port to every divergence whose operation was heard, and the notes on listening."""
    wrong = {fault.where for fault in report.faults}
    faults = tuple(_with_line(fault, heard, probes, wrong) for fault in report.faults)
    return dataclasses.replace(report, faults=faults, notes=(*report.notes, *heard.notes))


def _with_line(fault: Divergence, heard: Heard, probes: Mapping[str, Probe], wrong: Collection[str]) -> Divergence:
    call = heard.calls.get(fault.probe)
    if call is None or fault.where not in call.numbers:
        return fault
    site = fault.causes[0].at if fault.causes and fault.where == "logits" else ""
    if site in call.numbers:  # found in the logits alone: the operation that computes the tap of the fault
        source = call.operations[call.numbers[site]].source
    else:
        segment = (fault.where, fault.error, fault.budget)
        index = operation_of(probes[fault.probe], call.operations, call.taps, call.numbers, *segment)
        source = told_apart(call.operations, index, call.numbers, wrong)
    return fault if source is None else dataclasses.replace(fault, source=source.as_dict())
