"""Find the line at which a port's step with a cache diverges from its forward pass without one.

A right step recomputes numbers of the forward pass at the same positions. The first number that the forward pass does
not contain is the fault.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from transparity_conformance.capabilities.decoding.steps import StepRequest, named_inputs, take_step
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.matching.graph import leading_nowhere
from transparity_conformance.matching.recorded import Recorded, is_near
from transparity_conformance.oracle.probes import Probe, as_given, sees_something
from transparity_conformance.report.comparison import as_numbers, gap
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.running import listen_in_full


@dataclasses.dataclass(frozen=True, eq=False)
class _Step:
    """A wrong step of a port: its operations, the end of its chunk, and the length of the input."""

    operations: Sequence[Operation]
    logits: np.ndarray
    end: int
    length: int


def with_line_of_step(
    report: Report, forward: Any, requests: Iterable[StepRequest], others: Mapping[int, Any]
) -> Report:
    """Add to a divergence of a port's steps the line where the first wrong step leaves the forward pass.

    Args:
        report, forward: The report and the port.
        requests: The compared steps.
        others: The port at other sizes, by the identity of their parameters.
    """
    for index, fault in enumerate(report.faults):
        asked = [each for each in requests if each.probe.name == fault.probe]
        if fault.where != "step" or not math.isfinite(fault.error) or not asked:
            continue
        built = others.get(id(asked[0].probe.parameters), forward)
        try:
            source = _line(built, asked, fault.budget, fault.error)
        except PortProcessError:
            raise
        except (PortError, TypeError) as error:  # TypeError: the step returned something else this time
            return report.adding(notes=[f"the port's decoding steps could not be recorded: {error}"])
        found = dataclasses.replace(fault, source=None if source is None else dataclasses.asdict(source))
        return dataclasses.replace(report, faults=(*report.faults[:index], found, *report.faults[index + 1 :]))
    return report


def _line(forward: Any, requests: Sequence[StepRequest], budget: float, error: float) -> Source | None:
    """Return the line of the first wrong number in the first wrong step, on one row if that row is wrong."""
    for rows in (aligned_probe(requests[0].probe), requests[0].probe):
        for request in requests:
            step = _first_wrong(forward, rows, request.sizes, budget)
            if step is not None and step.operations:  # an artifact that reports its own steps has no operations
                return _parting(step, _right_ones(forward, rows), budget, error)
    return None


def _first_wrong(forward: Any, probe: Probe, sizes: Sequence[int], budget: float) -> _Step | None:
    """Decode again and record the first step with wrong logits; return None if every step is right."""
    expected, judged = probe.oracle.expected["logits"], sees_something(probe.config, probe.inputs)
    for number, (chunk, logits, _) in enumerate(_steps(forward, probe, sizes)):
        seen = judged[:, chunk]
        if gap(logits[seen], expected[:, chunk][seen]) > budget:
            return _heard(forward, probe, sizes, number)
    return None


def _steps(forward: Any, probe: Probe, sizes: Sequence[int]) -> Iterator[tuple[slice, np.ndarray, Any]]:
    """Decode, and yield for every step its positions, its logits and the cache after it."""
    begin, cache = 0, None
    for size in sizes:
        chunk = slice(begin, begin + size)
        tokens, named = _given(probe, chunk)
        logits, cache = take_step(forward.step, tokens, cache, named)
        yield chunk, as_numbers(logits).astype(np.float64), cache
        begin += size


def _heard(forward: Any, probe: Probe, sizes: Sequence[int], number: int) -> _Step:
    """Decode again, because a cache may be modified in place, and record step `number`, counted from 0."""
    caches = [None, *(cache for _, _, cache in _steps(forward, probe, sizes[:number]))]
    chunk = slice(sum(sizes[:number]), sum(sizes[: number + 1]))
    tokens, named = _given(probe, chunk)
    (logits, _), operations = listen_in_full(forward, "step", tokens, caches[-1], **named)
    length = probe.inputs[probe.config.input_names[-1]].shape[1]
    return _Step(operations, as_numbers(logits).astype(np.float64), chunk.stop, length)


def _given(probe: Probe, chunk: slice) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the tokens of a step and its further inputs."""
    tokens = np.array(probe.inputs[probe.config.input_names[-1]][:, chunk], np.int64)
    return tokens, named_inputs(probe, slice(None), chunk)


def _right_ones(forward: Any, probe: Probe) -> list[Operation]:
    """Return everything that the port computes without a cache."""
    inputs = {name: as_given(value) for name, value in probe.inputs.items()}
    return listen_in_full(forward, "", **inputs)[1]


def _parting(step: _Step, right: Sequence[Operation], budget: float, error: float) -> Source | None:
    """Return the line of the first number on the path to the logits that is not among the `right` ones.

    Its line must not lead to right numbers elsewhere in the step.
    """
    port, largest = Recorded(step.operations, step.logits), float(np.abs(step.logits).max(initial=0.0)) or 1.0
    lines, rounding = _Lines(right), budget / largest
    near = (
        math.sqrt(budget * min(error, largest)) / largest
    )  # relative to the error, a number is clearly right or wrong

    def is_among(index: int, others: Sequence[Operation], tolerance: float) -> bool:
        return any(_is_part(port.values[index], each.value, step, tolerance) for each in others)

    alike = {index: lines.same(port.operations[index]) for index in port.relevant}
    is_right = {index: is_among(index, alike[index] or right, near) for index in sorted(port.relevant)}
    is_known = lambda index: is_right[index] and is_among(index, alike[index], rounding)  # noqa: E731
    nowhere = leading_nowhere(port.relevant, is_known, lambda index: port.readers.get(index, ()))
    first = min((i for i in nowhere if not is_right[i] and port.operations[i].stack), default=None)
    if first is None:
        return None
    wrong, others = port.operations[first], (port.operations[i] for i in is_right if is_right[i])
    return wrong.line_apart(each for each in others if each.name == wrong.name)


class _Lines:
    """Operations by their line and callers."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.by_lines: dict[tuple[str, tuple[Source, ...]], list[Operation]] = {}
        for each in operations:
            for count in range(1, len(each.stack) + 1):
                self.by_lines.setdefault((each.name, each.stack[:count]), []).append(each)

    def same(self, operation: Operation) -> Sequence[Operation]:
        """Return the operations of the same line that share the most callers, if any."""
        for count in range(len(operation.stack), 0, -1):
            if found := self.by_lines.get((operation.name, operation.stack[:count])):
                return found
        return ()


def _is_part(value: np.ndarray, whole: np.ndarray, step: _Step, tolerance: float) -> bool:
    """Return whether the forward pass contains a step's numbers, at the step's positions or at all up to its last."""
    if value.ndim != whole.ndim:
        return False
    ways = [list(_cuts(*sizes, step)) for sizes in zip(value.shape, whole.shape, strict=True)]
    allowed = tolerance * float(np.abs(value[np.isfinite(value)]).max(initial=0.0))
    return any(_is_near_to(value, whole, cuts, allowed) for cuts in itertools.product(*ways))


def _cuts(size: int, whole: int, step: _Step) -> Iterator[tuple[slice, slice]]:
    """Yield the parts of an axis that may agree.

    They are the whole axis, the last positions up to the step's, or the written part of a larger buffer.
    """
    if size == whole:
        yield slice(None), slice(None)
    if whole == step.length and size <= step.end:
        yield slice(None), slice(step.end - size, step.end)
    if whole == step.length and size > step.end:
        yield slice(step.end), slice(step.end)


def _is_near_to(value: np.ndarray, whole: np.ndarray, cuts: Sequence[tuple[slice, slice]], allowed: float) -> bool:
    """Return whether the parts agree and the rest of a buffer has only one value."""
    own, theirs = value[tuple(cut for cut, _ in cuts)], whole[tuple(cut for _, cut in cuts)]
    rest = value.copy()
    rest[tuple(cut for cut, _ in cuts)] = np.nan
    left = rest[~np.isnan(rest)]
    return is_near(own, theirs, allowed) and bool((left == left[:1]).all())
