"""Find the activations (taps) that a port does not return, by matching them with recorded operations."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.limits.memory import available_memory, in_bytes
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance import work
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.diagnosis.judge import Actual, Progress
from transparity_conformance.diagnosis.search.clock import WORK, Clock
from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.plan import Plan, plan_of, read
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.forms import without_loops
from transparity_conformance.matching.values import same_numbers
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, mixed_inputs
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Divergence
from transparity_conformance.running.process.running import run_listening

Forwards = Mapping[int, Callable[..., Any]]


@dataclass(frozen=True, eq=False)
class AlignedCall:
    operations: Sequence[Operation]
    taps: Arrays
    numbers: Mapping[str, int]
    """The index of the operation that computed each tap."""
    with_whole_numbers: Callable[[], Sequence[Operation]] = field(repr=False)
    """A function that runs the call again, and also records operations on integers and bools."""


@dataclass(frozen=True, eq=False)
class RecordedPort:
    calls: Mapping[str, AlignedCall]
    notes: tuple[str, ...] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    """The probes of additional calls, which are not part of the check."""


NOT_ASKED = RecordedPort({})

RETURN_THEM = "if the port returns its activations, the checker can find more faults"


class AlignedRow(Probe):
    """A probe with one row without padding. Its float64 parameters stay in memory, because the reference runs often."""

    keeps_exact = True

    @functools.cached_property
    def exact(self) -> Arrays:
        return {name: np.asarray(value, np.float64) for name, value in self.parameters.items()}


BYTES_OF_A_TAP = 220
"""The measured memory per element of a tap, in bytes: 6.7 recorded numbers of 8 bytes each, with copies and sorted
values."""

WALKS_OF_A_TAP = 2
"""The reference runs twice per tap: to find the data flow, and to try values after a fault."""


def row_of(probe: Probe) -> Probe:
    lengths = lengths_of(probe.config, probe.inputs)
    source, target = lengths.get("source", lengths.get("tokens", 1)), lengths.get("target", 1)
    return aligned_probe(dataclasses.replace(probe, inputs=mixed_inputs(probe.config, 0, source, target)))


def wrong_logits(probes: Mapping[str, Probe], actual: Actual, dtype: str) -> Divergence | None:
    """Return the largest divergence of the logits beyond the budget, if any. Ignore logits with a wrong shape."""
    worst = Divergence("logits", 0.0, 1.0)
    for key, taps in actual.items():
        oracle, logits = probes[key].oracle, taps["logits"]
        if logits.shape == oracle.expected["logits"].shape:
            error = judged_gap(probes[key], "logits", logits, oracle.expected["logits"], dtype)
            budget = oracle.budget("logits", dtype)
            if share(error, budget) > share(worst.error, worst.budget):
                worst = Divergence("logits", error, budget, probe=probes[key].name)
    return worst if share(worst.error, worst.budget) > 1 else None


def hear(
    forwards: Forwards,
    probes: Mapping[str, Probe],
    actual: Actual,
    dtype: str,
    clock: Clock,
    progress: Progress,
    row: Probe | None = None,
    known: Combination = (),
) -> RecordedPort:
    """Record a port with wrong logits, and find its missing taps. Match the taps on `row`, by default a row of the
    first probe, with a reference that has the `known` faults. Record a large model only on this row."""
    first = next(iter(probes.values()))
    row = row or aligned_probe(first)
    if shows_all(probes, actual):
        return NOT_ASKED
    if reason := _why_not(row, clock):
        return RecordedPort({}, (f"the port's operations were not recorded: {reason}; {RETURN_THEM}",))
    try:
        return _heard(forwards, row, {} if first.is_large else probes, actual, dtype, clock, progress, known)
    except PortProcessError:
        raise
    except PortError as error:
        return RecordedPort({}, (f"the port's operations could not be recorded: {error}",))


def shows_all(probes: Mapping[str, Probe], actual: Actual) -> bool:
    return all(len(actual[key]) == len(probe.oracle.expected) for key, probe in probes.items())


def _why_not(row: Probe, clock: Clock) -> str:
    shapes = tap_shapes(row.config, len(next(iter(row.inputs.values()))), **lengths_of(row.config, row.inputs))
    exact = 8 * sum(value.size for value in row.parameters.values())
    needed, free = exact + BYTES_OF_A_TAP * sum(map(math.prod, shapes.values())), available_memory()
    if needed > free:
        return (
            f"the port's weights and its activations for one input row need {in_bytes(needed)} of memory, but the "
            f"free memory is {in_bytes(free)}"
        )
    if clock.time.left <= 0:
        return "no time is left for the search (--budget SECONDS allows more)"
    if clock.is_over:
        return "the search for causes reached its limit of computation"
    before = work.done()
    walk(row, {})
    of_a_walk = work.done() - before
    clock.allow(of_a_walk)
    of_all = WALKS_OF_A_TAP * len(shapes) * of_a_walk
    if of_all > max(clock.work.left, WORK):
        return f"matching the port's {len(shapes)} activations would need too many runs of the reference"
    clock.reserve(of_all)
    return ""


def _heard(
    forwards: Forwards,
    row: Probe,
    probes: Mapping[str, Probe],
    actual: Actual,
    dtype: str,
    clock: Clock,
    progress: Progress,
    known: Combination,
) -> RecordedPort:
    progress("listening to the port", 0, len(probes) + 1)
    taps, operations = run_listening(forwards[id(row.parameters)], row)
    if not operations:
        return RecordedPort({}, (f"no operation of the port could be recorded; {RETURN_THEM}",))
    plan = plan_of(row, operations, taps["logits"], dtype, clock, known)
    loops, has_loops = without_loops(row, operations), False
    if len(plan.matches) < len(row.oracle.expected) and len(loops) < len(operations):
        other = plan_of(row, loops, taps["logits"], dtype, clock, known)
        has_loops = len(other.matches) > len(plan.matches)
        plan, operations = (other, loops) if has_loops else (plan, operations)
    every = probes or {row.name: row}
    ran = {} if probes else {row.name: operations}
    for done, (key, probe) in enumerate(probes.items()):
        progress("listening to the port", done + 1, len(probes) + 1)
        _, operations = run_listening(forwards[id(probe.parameters)], probe)
        ran[key] = without_loops(probe, operations) if has_loops else operations
    shown = actual if probes else {row.name: taps}

    calls = {key: _call(plan, every[key], operations, shown[key], forwards) for key, operations in ran.items()}
    taps_of_row = list(row.oracle.expected)
    absent = [tap for tap in taps_of_row if tap not in plan.matches]
    named = ", ".join(absent[:3]) + (", …" if absent[3:] else "")
    says = f"{len(absent)} of {len(taps_of_row)} activations of the reference match no operation of the port: {named}"
    return RecordedPort(calls, (says,) if absent else (), {} if probes else {row.name: row})


def _call(
    plan: Plan,
    probe: Probe,
    operations: Sequence[Operation],
    shown: Mapping[str, np.ndarray],
    forwards: Forwards,
) -> AlignedCall:
    expected = probe.oracle.expected
    taps, numbers = read(plan, probe, operations, shown["logits"])
    own = {tap: value for tap, value in shown.items() if value.shape == expected[tap].shape}
    for tap, value in own.items():
        if tap not in taps or not np.array_equal(taps[tap], value):
            same = (i for i, each in enumerate(operations) if same_numbers(each.value, value))
            index = next(same, None)
            numbers = {name: number for name, number in numbers.items() if name != tap}
            numbers = numbers if index is None else numbers | {tap: index}
    taps = taps | own
    again = functools.cache(lambda: run_listening(forwards[id(probe.parameters)], probe, whole_numbers=True)[1])
    return AlignedCall(operations, {tap: taps[tap] for tap in expected if tap in taps}, numbers, again)


def aligned_probe(probe: Probe) -> Probe:
    inputs = {name: value[:1] for name, value in probe.inputs.items()}
    if "attention_mask" in inputs:
        inputs["attention_mask"] = np.ones_like(inputs["attention_mask"])
    return AlignedRow(probe.case, "aligned", "one row without padding", probe.config, probe.parameters, inputs)
