"""Find the line at which two calls of a port start to differ: two equal calls, or a cached step and a forward pass."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity_conformance.capabilities.decoding.steps import named_inputs, take_step
from transparity_conformance.capabilities.other_logits import LogitsRequest
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import recorded
from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.matching.graph import leading_nowhere
from transparity_conformance.matching.recorded import Recorded, is_near, largest
from transparity_conformance.oracle.probes import Probe, as_given, sees_something
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.running import listen_in_full, run_listening


@dataclasses.dataclass(frozen=True, eq=False)
class _Step:
    operations: Sequence[Operation]
    logits: np.ndarray
    end: int
    length: int


def with_line_of_step(
    report: Report, forward: Any, requests: Iterable[LogitsRequest], others: Mapping[int, Any]
) -> Report:
    """Add to each fault of a decoding step the first line whose value differs from the forward pass. `others` maps the
    `id` of parameters to ports of other sizes."""
    for index, fault in enumerate(report.faults):
        asked = [each for each in requests if each.probe.name == fault.probe]
        if fault.where != "step" or not math.isfinite(fault.error) or not asked:
            continue
        built = others.get(id(asked[0].probe.parameters), forward)
        try:
            source = _line(built, asked, fault.budget, fault.error)
        except PortProcessError:
            raise
        except (PortError, TypeError) as error:  # TypeError: in this call, the step returned another type
            return report.adding(notes=[f"the port's decoding steps could not be recorded: {error}"])
        found = dataclasses.replace(fault, source=None if source is None else dataclasses.asdict(source))
        return dataclasses.replace(report, faults=(*report.faults[:index], found, *report.faults[index + 1 :]))
    return report


def _line(forward: Any, requests: Sequence[LogitsRequest], budget: float, error: float) -> Source | None:
    """Return the line of the first wrong value, found with a single row or, failing that, with the whole batch."""
    for rows in (aligned_probe(requests[0].probe), requests[0].probe):
        for request in requests:
            step = _first_wrong(forward, rows, request.sizes, budget)
            if step is not None and step.operations:  # exported models record no operations in steps
                inputs = {name: as_given(value) for name, value in rows.inputs.items()}
                return _parting(step, listen_in_full(forward, "", **inputs)[1], budget, error)
    return None


def _first_wrong(forward: Any, probe: Probe, sizes: Sequence[int], budget: float) -> _Step | None:
    expected, judged = probe.oracle.expected["logits"], sees_something(probe.config, probe.inputs)
    for number, (chunk, logits, _) in enumerate(_steps(forward, probe, sizes)):
        seen = judged[:, chunk]
        if gap(logits[seen], expected[:, chunk][seen]) > budget:
            return _heard(forward, probe, sizes, number)
    return None


def _steps(forward: Any, probe: Probe, sizes: Sequence[int]) -> Iterator[tuple[slice, np.ndarray, Any]]:
    begin, cache = 0, None
    for size in sizes:
        chunk = slice(begin, begin + size)
        tokens, named = _given(probe, chunk)
        logits, cache = take_step(forward.step, tokens, cache, named)
        yield chunk, as_numbers(logits).astype(np.float64), cache
        begin += size


def _heard(forward: Any, probe: Probe, sizes: Sequence[int], number: int) -> _Step:
    """Record the operations of the step `number`, after decoding again from the start, because later steps may have
    changed the cache."""
    caches = [None, *(cache for _, _, cache in _steps(forward, probe, sizes[:number]))]
    chunk = slice(sum(sizes[:number]), sum(sizes[: number + 1]))
    tokens, named = _given(probe, chunk)
    (logits, _), operations = listen_in_full(forward, "step", tokens, caches[-1], **named)
    length = probe.inputs[probe.config.input_names[-1]].shape[1]
    return _Step(operations, as_numbers(logits).astype(np.float64), chunk.stop, length)


def _given(probe: Probe, chunk: slice) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    tokens = np.array(probe.inputs[probe.config.input_names[-1]][:, chunk], np.int64)
    return tokens, named_inputs(probe, slice(None), chunk)


def _parting(step: _Step, right: Sequence[Operation], budget: float, error: float) -> Source | None:
    """Return the line of the first value that affects the logits and that no value in `right` equals. If the same line
    also computes right values, return the line of its caller."""
    port, scale = Recorded(step.operations, step.logits), float(np.abs(step.logits).max(initial=0.0)) or 1.0
    same, rounding = _by_line(right), budget / scale
    # Choose a tolerance between the rounding error and the error of the logits, so that values are clearly right or
    # wrong.
    near = math.sqrt(budget * min(error, scale)) / scale

    def is_among(index: int, others: Sequence[Operation], tolerance: float) -> bool:
        return any(_is_part(port.values[index], each.value, step, tolerance) for each in others)

    alike = {index: same(port.operations[index]) for index in port.relevant}
    is_right = {index: is_among(index, alike[index] or right, near) for index in sorted(port.relevant)}
    is_known = lambda index: is_right[index] and is_among(index, alike[index], rounding)
    nowhere = leading_nowhere(port.relevant, is_known, lambda index: port.readers.get(index, ()))
    first = min((i for i in nowhere if not is_right[i] and port.operations[i].stack), default=None)
    if first is None:
        return None
    wrong, others = port.operations[first], (port.operations[i] for i in is_right if is_right[i])
    return wrong.line_apart(each for each in others if each.name == wrong.name)


def _by_line(operations: Sequence[Operation]) -> Callable[[Operation], Sequence[Operation]]:
    """Return a function that finds the operations with the same name and line, and the most similar call stack."""
    by_lines: dict[tuple[str, tuple[Source, ...]], list[Operation]] = {}
    for each in operations:
        for count in range(1, len(each.stack) + 1):
            by_lines.setdefault((each.name, each.stack[:count]), []).append(each)

    def same(one: Operation) -> Sequence[Operation]:
        found = (by_lines.get((one.name, one.stack[:count])) for count in range(len(one.stack), 0, -1))
        return next(filter(None, found), ())

    return same


def _is_part(value: np.ndarray, whole: np.ndarray, step: _Step, tolerance: float) -> bool:
    """Return whether a step's value equals the forward pass's value at the step's positions, or up to their end."""
    if value.ndim != whole.ndim:
        return False
    ways = [list(_cuts(*sizes, step)) for sizes in zip(value.shape, whole.shape, strict=True)]
    for cuts in itertools.product(*ways):
        part, rest = tuple(cut for cut, _ in cuts), value.copy()
        rest[part] = np.nan
        left = rest[~np.isnan(rest)]  # the unused part of a buffer is constant
        theirs = whole[tuple(cut for _, cut in cuts)]
        if is_near(value[part], theirs, tolerance * largest(value)) and (left == left[:1]).all():
            return True
    return False


def _cuts(size: int, whole: int, step: _Step) -> Iterator[tuple[slice, slice]]:
    """Yield pairs of slices of an axis, in the step and in the forward pass, that may correspond."""
    if size == whole:
        yield slice(None), slice(None)
    if whole == step.length and size <= step.end:
        yield slice(None), slice(step.end - size, step.end)
    if whole == step.length and size > step.end:
        yield slice(step.end), slice(step.end)


def with_unsteady_line(report: Report, forward: Callable[..., Any], probe: Probe) -> Report:
    row = aligned_probe(probe)
    try:
        taps, once = run_listening(forward, row)
        _, again = run_listening(forward, row)
    except PortProcessError:
        raise
    except PortError as error:
        return report.adding(notes=[f"the port's operations could not be recorded: {error}"])

    parting = parted(once, again)
    first, *others = report.faults
    is_placed = first.where == "logits" and not probe.is_large
    if is_placed and (tap := parted_tap(row, once, parting, taps["logits"], report.dtype)):
        placed = (dataclasses.replace(each, says=f"{each.says}, at {tap}", at=tap) for each in first.causes)
        first = dataclasses.replace(first, causes=tuple(placed))
    if (source := first_source(once, parting)) is not None:
        first = dataclasses.replace(first, source=dataclasses.asdict(source))
    return dataclasses.replace(report, faults=(first, *others))


def parted(once: Sequence[Operation], again: Sequence[Operation]) -> list[int]:
    def key(each: Operation | None) -> object:
        return each and (each.name, each.value.shape, each.value.tobytes())

    pairs = itertools.zip_longest(once, again[: len(once)])
    return [index for index, (one, other) in enumerate(pairs) if key(one) != key(other)]


def first_source(operations: Sequence[Operation], indices: Iterable[int]) -> Source | None:
    return next((operations[index].source for index in indices if operations[index].source is not None), None)


def parted_tap(
    probe: Probe, operations: Sequence[Operation], parting: Sequence[int], answer: np.ndarray, dtype: str
) -> str:
    """Return the last right tap on which the operations `parting` depend, or "". These operations differ between two
    calls."""
    port = recorded(probe, operations, answer, dtype)
    unsteady = {*parting, len(operations)}
    equal = port.equal(walk(probe, {}), may_be=lambda index: index not in unsteady)
    steady = {match.index: tap for tap, match in equal.items()}
    for index in sorted(unsteady):  # the first differing operation may only draw random numbers
        if before := [each for each in steady if port.leads_to(each, index)]:
            return steady[max(before)]
    return ""
