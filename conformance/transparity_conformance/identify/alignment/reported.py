"""Add to a report the port's lines, and swaps of weights that explain a fault as well as the reported cause does."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from transparity_conformance.catalogue import faults_at, hypotheses
from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.diagnosis.explain import tap_kind
from transparity_conformance.diagnosis.judge import Actual
from transparity_conformance.diagnosis.probe_result import error_profile
from transparity_conformance.diagnosis.search.fitting import fittables
from transparity_conformance.diagnosis.walk import Impossible, segment_budgets, walk
from transparity_conformance.identify.alignment.heard import AlignedCall, RecordedPort
from transparity_conformance.identify.alignment.lines import at_omission, behind_taps, maker, operation_of
from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.matching.recorded import HALF_OF_THE_DIGITS, Recorded, largest
from transparity_conformance.matching.values import is_whole
from transparity_conformance.oracle.budgets import epsilon
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.check.findings import spread
from transparity_conformance.report.check.lines import PortLine
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, Divergence, Report


def with_lines(report: Report, heard: RecordedPort, probes: Mapping[str, Probe]) -> Report:
    faults = alike_on_a_line([_with_line(fault, report, heard, probes) for fault in report.faults])
    changes = [note for fault in faults if not fault.causes for note in _partly_changed(fault, heard)]
    return dataclasses.replace(report, faults=faults, notes=(*report.notes, *dict.fromkeys(changes), *heard.notes))


def alike_on_a_line(faults: Sequence[Divergence]) -> tuple[Divergence, ...]:
    """Drop the causes of a divergence if another divergence of the same line and kind has none: the causes may be
    coincidences."""

    def computing(fault: Divergence) -> tuple[object, ...]:
        line = fault.source or {}
        return line.get("file"), line.get("line"), tap_kind(fault.where)

    unknown = {computing(fault) for fault in faults if fault.source and not fault.causes}
    return tuple(each.unexplained if computing(each) in unknown else each for each in faults)


def _partly_changed(fault: Divergence, heard: RecordedPort) -> Iterator[str]:
    calls = [call for call in heard.calls.values() if fault.where in call.numbers]
    if fault.source is None or not calls:
        return
    call = max(calls, key=lambda each: each.operations[each.numbers[fault.where]].value.size)  # shows patterns best
    line, taps, parts = PortLine(**fault.source), {index: tap for tap, index in call.numbers.items()}, []
    for operation in call.operations:
        if operation.source is None or (operation.source.file, operation.source.line) != (line.file, line.line):
            continue
        for index in {*operation.inputs} & taps.keys():
            given = call.operations[index].value
            if given.shape == operation.value.shape and given.ndim in (3, 4):
                errors = _changes(operation.value, given, taps[index]).items()
                parts.append({axis: list(each) for axis, each in errors if 0 < np.count_nonzero(each) < len(each)})
    if any(parts):
        least = min(filter(None, parts), key=lambda part: sum(map(np.count_nonzero, part.values())))
        yield f"{line.place} changes only {'; '.join(spread(least, fault.budget))}"


def _changes(value: np.ndarray, given: np.ndarray, tap: str) -> dict[str, list[float]]:
    errors = error_profile(value, given)
    if given.ndim == 4:
        last = "key" if tap.endswith((".scores", ".weights")) else "feature"
        errors[last] = error_profile(value.swapaxes(0, 3), given.swapaxes(0, 3))["row"]
    return errors


def with_first_line(report: Report, heard: RecordedPort, probes: Mapping[str, Probe]) -> Report:
    faults = tuple(_with_line(fault, report, heard, probes) for fault in report.faults[:1])
    return dataclasses.replace(report, faults=(*faults, *report.faults[1:]))


def _with_line(fault: Divergence, report: Report, heard: RecordedPort, probes: Mapping[str, Probe]) -> Divergence:
    call = heard.calls.get(fault.probe)
    if call is None or fault.where not in call.numbers:
        return fault
    site = fault.causes[0].at if fault.causes and fault.where == "logits" else ""
    if site in call.numbers:  # only the logits reveal the fault: use the line at which the fault acts
        tried = (_line_of_site(site, report, each, probes[key]) for key, each in heard.calls.items())
        source = next(filter(None, tried), None)
    else:
        source = _line(fault, report, call, probes[fault.probe])
        fault = _with_own_lines(fault, report, call, probes[fault.probe])
    return fault if source is None else dataclasses.replace(fault, source=dataclasses.asdict(source))


def _line_of_site(site: str, report: Report, call: AlignedCall, probe: Probe) -> Source | None:
    told = [(cause, cause.at or fault.where) for fault in report.faults for cause in fault.causes]
    hypotheses = [hypothesis_of(probe, cause, where) for cause, where in told]
    with contextlib.suppress(Impossible):
        ours = walk(probe, {}, [each for each in hypotheses if each is not None], until=site)[site]
        match = Recorded(call.operations, call.taps["logits"], probe.config.num_heads, report.dtype).nearest(ours)
        if match and match.index < len(call.operations):
            return _line_apart(call.operations[match.index], call, report)
    return None


def _line_apart(operation: Operation, call: AlignedCall, report: Report) -> Source | None:
    """Return the operation's line or, if the line also computes right taps of the same stack, a caller's line. Taps of
    only integers do not count: the weights of a single key are always 1."""
    wrong = {place for fault in report.faults for place in (fault.where, *(each.at for each in fault.causes)) if place}
    depth = 1 if all(fault.causes for fault in report.faults) else 3
    near = tuple(".".join([*tap.split(".")[:depth], ""]) if "." in tap else "" for tap in wrong)
    numbers = {call.numbers[tap] for tap in wrong if tap in call.numbers}
    others = (tap for tap, number in call.numbers.items() if number not in numbers and tap.startswith(near))
    right = [tap for tap in others if not is_whole(call.taps[tap])]
    return operation.line_apart(behind_taps(call.operations, call.numbers, right))


def _line(
    fault: Divergence, report: Report, call: AlignedCall, probe: Probe, besides: Sequence[Hypothesis] = ()
) -> Source | None:
    index = operation_of(probe, call, fault.where, fault.error, fault.budget, besides)
    if index > call.numbers[fault.where]:
        operation = at_omission(probe, call, fault.where)
    else:
        has_wrong_rows = any(each.mistake.startswith("position-") for each in fault.causes)
        operation = maker(probe, call, index, has_wrong_rows=has_wrong_rows)
    source = operation.source
    size = largest(np.nan_to_num(call.taps[fault.where]))
    # Rounding cannot hide such a large error at the other taps that the line computes.
    if source is not None and fault.error > epsilon(report.dtype) ** HALF_OF_THE_DIGITS * size:
        source = _line_apart(operation, call, report)
    return source and _whole(source, call.operations[index : call.numbers[fault.where] + 1])


def _whole(source: Source, segment: Sequence[Operation]) -> Source:
    """Return a line with the columns of all its operations in `segment`."""
    lines = (line for each in segment for line in each.stack if line == source)
    columns = [line.columns for line in lines if line.columns is not None]
    if not columns:
        return source
    return dataclasses.replace(source, columns=(min(start for start, _ in columns), max(end for _, end in columns)))


def _with_own_lines(fault: Divergence, report: Report, call: AlignedCall, probe: Probe) -> Divergence:
    """If a divergence has several causes, add to each cause the first line that only this cause explains."""
    places = {cause.at or fault.where for cause in fault.causes}
    put_in = [hypothesis_of(probe, cause, *places) for cause in fault.causes] if len(places) == 1 else []
    if len(put_in) < 2 or None in put_in:
        return fault
    causes, place = [], places.pop()
    where = place if place in call.numbers else fault.where
    for index, cause in enumerate(fault.causes):
        besides = [each for number, each in enumerate(put_in) if number != index and each is not None]
        try:
            ours = walk(probe, call.taps, besides, until=where)[where]
            error = judged_gap(probe, where, call.taps[where], ours, report.dtype, call.taps)
            own = dataclasses.replace(fault, where=where, error=error)  # another cause may be far larger
            source = _line(own, report, call, probe, besides)
        except Impossible:
            return fault
        causes.append(cause if source is None else dataclasses.replace(cause, source=dataclasses.asdict(source)))
    return dataclasses.replace(fault, causes=tuple(causes))


def hypothesis_of(probe: Probe, cause: Cause, where: str) -> Hypothesis | None:
    known = (each for each in faults_at(probe.config, where) if each.id == cause.mistake)
    fitted: Iterator[Fault] = iter(())
    if cause.value is not None:
        fitted = (numeric.make(cause.value) for numeric, _ in fittables(probe.config, [where]))
    made = (each for each in (*known, *fitted) if each.id == cause.mistake and cause.says.startswith(each.description))
    return next((Hypothesis(each, (where,)) for each in made), None)


def with_exchanges(report: Report, heard: RecordedPort, probes: Mapping[str, Probe], actual: Actual) -> Report:
    """Add to each divergence the swaps of two weights that explain the divergence as well as its cause does."""
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
            fault = dataclasses.replace(fault, indistinguishable=(*fault.indistinguishable, rival.fault.id))
    return fault


def _exchanges(probe: Probe, call: AlignedCall, where: str, named: Collection[str]) -> Iterator[Hypothesis]:
    sublayer, order = where.rpartition(".")[0], list(call.taps)
    before = [tap for tap in order[: order.index(where)] if tap.rpartition(".")[0] == sublayer and tap not in named]
    for hypothesis in hypotheses(probe.config, before):
        if hypothesis.fault.is_mutual and len(hypothesis.sites) == 2:
            yield hypothesis


def _is_same(probe: Probe, call: AlignedCall, where: str, rival: Hypothesis, dtype: str) -> bool:
    """Return whether swapped weights explain the port's value at `where`."""
    given = {tap: value for tap, value in call.taps.items() if tap not in rival.sites}
    ours = walk(probe, given, (rival,), until=where)[where]
    budgets = segment_budgets(probe, given, dtype, (rival,), until=where, neighbours=min(2, probe.neighbours))
    return share(judged_gap(probe, where, call.taps[where], ours, dtype, given), budgets[where]) <= 1
