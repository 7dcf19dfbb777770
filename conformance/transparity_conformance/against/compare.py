"""Find the lines of code that differ, and an edit that explains all calls. An edit may explain one call by chance."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.against.comparer import Comparer, Comparison
from transparity_conformance.against.departures import Departure, Departures, changes_of, with_other_edits, without_edit
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.against.probes import Answer, most_telling
from transparity_conformance.against.reference import Inputs, Reference, RefusedError, described, shares
from transparity_conformance.against.search import EditSearch
from transparity_conformance.capabilities.port_calls import PortCallError, PortError
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.thresholds import REMEASURED_WITHIN
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.graph import ancestors
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.matching.values import agreeing, apart
from transparity_conformance.report.report import Cause, Divergence

Listen = Callable[[Inputs], tuple[np.ndarray, Sequence[Operation]]]

RESHAPED = "shape"
"""The id of the fault "right values in a wrong shape", which has no page in the catalogue."""


class Call:
    """A call of both implementations with the same inputs. The port's operations are recorded on first use."""

    def __init__(self, reference: Reference, listen: Listen, answer: Answer) -> None:
        self.reference, self.listen, self.answer, self.inputs = reference, listen, answer, answer.inputs

    @functools.cached_property
    def recorded(self) -> Recorded:
        answer, operations = self.listen(self.inputs)
        return Recorded(operations, np.asarray(answer, np.float64))

    def departures(self, experts: str, clock: Clock) -> Departures:
        reference, inputs = self.reference, self.inputs
        program, main = reference.program(inputs, experts), reference.main(inputs)
        kept = reference.kept(inputs, self.answer.shape)
        comparer = Comparer(program, self.recorded, reference.dtype, main, kept)
        has_others = experts != reference.experts[-1]
        search = EditSearch(comparer, reference.numbers, clock)
        return Departures(comparer, search, has_others, reference.layer_types)

    def is_explained(self, found: Sequence[Departure]) -> bool:
        return any(self._is_explained_in(experts, found) for experts in self.reference.experts)

    def _is_explained_in(self, experts: str, found: Sequence[Departure]) -> bool:
        program = self.reference.program(self.inputs, experts)
        is_rounded = any(each.edit is not None and each.edit.kind == "rounding" for each in found)
        flow = DataFlow(program, self.reference.main(self.inputs), self.recorded.rounded if is_rounded else None)
        changes = changes_of(found, program, flow)
        try:
            given = program.run(changes)[program.answer]
            within = self.answer.budget / max(float(given.abs().max()), np.finfo(float).tiny)
            kept = self.reference.kept(self.inputs, given.shape)
            if agreeing(given, self.answer.actual, within, kept):
                return True
            measured = shares(program, self.reference.dtype, changes)
            return agreeing(given, self.answer.actual, measured.get(program.answer, 0.0), kept)
        except Exception:  # noqa: BLE001 - an edit may pass invalid arguments to an operation
            return False


@dataclasses.dataclass(frozen=True)
class Confirming:
    """Finds edits that explain one call, and confirms these edits on the other calls. Calls with padding or long texts
    may show differences that the first call does not show."""

    departures: Departures
    others: Sequence[Call]
    experts: str
    clock: Clock

    def found(self) -> tuple[list[Departure], Comparison]:
        further: list[Departure] = []
        while True:
            found, now = self.departures.found()
            if not now.agrees:
                return found, now
            if any(each.edit is None for each in found):
                return (found if self._is_alike(found) else list(map(without_edit, found))), now
            if (failing := self._failing(found)) is None:
                return found, now
            tried = next(with_other_edits(found), None)  # an alternative edit may explain every call
            while tried is not None and self._failing(tried):
                tried = next(with_other_edits(tried), None)
            if tried and (after := self._run_again(tried, now)):
                return tried, after
            more = self._with_further(found, failing, now)
            if more and all(each.edit for each in more) and (after := self._run_again(more, now)):
                return more, after
            further = further or more[len(found) :]
            if self.clock.is_over or not found:
                return list(map(without_edit, [*found, *further])), now
            doubtful = max((each for each in found if each.edit), key=lambda each: each.edit.rank if each.edit else -1)
            for step, edit in ((doubtful.step, doubtful.edit), *((each.step, each.edit) for each in doubtful.others)):
                assert edit is not None
                self.departures.search.refuse(step, edit)

    def equal_edits(self, found: Sequence[Departure]) -> Iterator[tuple[Departure, list[str]]]:
        """Yield each difference with the descriptions of at most three alternative edits, which also explain every
        call."""
        for place, each in enumerate(found):
            simple = [
                other
                for other in each.others
                if each.edit
                and other.edit.rank <= each.edit.rank
                # The words of one exchange of several segments may name any of these segments.
                and not (other.edit.kind == each.edit.kind == "exchanged" and other.steps == each.steps)
            ]
            told = []
            for other in simple[:3]:  # more would make the note too long
                instead = dataclasses.replace(each, edit=other.edit, step=other.step, steps=other.steps)
                if self._failing([*found[:place], instead, *found[place + 1 :]]) is None:
                    told.append(other.edit.says)
            yield each, told

    def _failing(self, found: Sequence[Departure]) -> Call | None:
        return next((each for each in self.others if not each.is_explained(found)), None)

    def _with_further(self, found: Sequence[Departure], failing: Call | None, now: Comparison) -> list[Departure]:
        """Extend `found` by the differences in other calls. Return [] if a wrong call adds no difference, or if all
        edits together do not explain the first call."""
        more = list(found)
        while failing:
            added, after = failing.departures(self.experts, self.clock).found(more)
            more += added
            if not (added and after.agrees and all(each.edit for each in added)):
                return more if added else []
            failing = self._failing(more)
        together = self._run_again(more, now)
        return more if together is not None and together.agrees else []

    def _is_alike(self, found: Sequence[Departure]) -> bool:
        wrong = {call.answer: call for call in self.others if not call.answer.agrees}
        if not wrong:
            return True
        added, after = wrong[most_telling([*wrong])].departures(self.experts, self.clock).found(found)
        lines = {each.step.line for each in found if each.edit is None}
        return after.agrees and {each.step.line for each in added} <= lines

    def _run_again(self, found: Sequence[Departure], now: Comparison) -> Comparison | None:
        comparer = self.departures.comparer
        after = comparer.tried(self.departures.changes_of(found), now)
        return None if after is None else comparer.measured(after)


@dataclass(frozen=True, eq=False)
class Outcome:
    answers: Sequence[Answer]
    faults: Sequence[Divergence] = ()
    notes: Sequence[str] = ()
    lost: float = math.inf
    """The number of the port's operations that stay unmatched after the edits."""
    site: Hashable = None
    """The code position of the first unexplained difference."""
    also: Sequence[Call] = ()
    """Calls of the same implementations with other weights; edits must explain these calls, too."""

    @property
    def is_explained(self) -> bool:
        return bool(self.faults) and all(each.causes for each in self.faults)

    @property
    def wrong(self) -> list[Answer]:
        return [each for each in self.answers if not each.agrees]

    @property
    def worst(self) -> Answer:
        """The wrong answer with the largest error, relative to its budget."""
        return max(self.wrong, key=lambda each: each.share)


def judged(
    reference: Reference,
    port: Callable[[Inputs], np.ndarray],
    probes: Mapping[str, Inputs],
    progress: Progress = ignore_progress,
) -> Outcome:
    answers = []
    for count, (name, inputs) in enumerate(probes.items()):
        progress(f"comparing {name}", count, len(probes))
        expected, budget = reference.near(inputs)
        try:
            actual = np.asarray(port(inputs), np.float64)
        except PortCallError as failed:
            raise PortError(
                f"The port raised {failed} on {described(inputs)}; the reference {reference.name} accepts these inputs."
            ) from failed
        found = answer_of(reference, name, inputs, actual, expected, budget)
        if 1 < found.share < REMEASURED_WITHIN[reference.dtype]:
            # With one set of weights, the rounding error may be small by chance. Measure the budget with several sets.
            found = answer_of(reference, name, inputs, actual, expected, max(budget, reference.answer(inputs)[1]))
        answers.append(found)
    return Outcome(answers)


def answer_of(
    reference: Reference, name: str, inputs: Inputs, actual: np.ndarray, expected: np.ndarray, budget: float
) -> Answer:
    if actual.size != expected.size:
        return Answer(name, inputs, math.inf, budget, actual, expected.size, 0, expected.shape)
    errors = apart(actual.reshape(expected.shape), expected, reference.kept(inputs, expected.shape))
    wrong = errors > budget
    by_position = wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != 1))
    first = int(by_position.argmax()) if wrong.ndim > 1 else 0
    return Answer(name, inputs, float(errors.max()), budget, actual, int(wrong.sum()), first, expected.shape)


def explained(reference: Reference, listen: Listen, outcome: Outcome, clock: Clock, progress: Progress) -> Outcome:
    """Find edits that explain one wrong answer, and confirm these edits on the other calls. A wrong answer stays wrong
    if the reference cannot be recorded."""
    try:
        return _explained(reference, listen, outcome, clock, progress)
    except RefusedError as error:
        return dataclasses.replace(outcome, faults=[_unlocated(outcome)], notes=[f"no line was found: {error}"])


def _explained(reference: Reference, listen: Listen, outcome: Outcome, clock: Clock, progress: Progress) -> Outcome:
    """Explain one wrong answer. If no edit explains a difference, record the reference again with another
    implementation of its experts."""
    chosen, found = most_telling(outcome.wrong), outcome
    rest = sorted((each for each in outcome.answers if each is not chosen), key=lambda each: each.size)
    call, *others = (*(Call(reference, listen, each) for each in (chosen, *rest)), *outcome.also)
    if not call.recorded.operations:  # the framework or a compiled program hides them
        faults = _reshaped(outcome, 0.0, is_explained=True) or [_unlocated(outcome)]
        return dataclasses.replace(outcome, faults=faults, notes=_notes(_misshapen(outcome), 0))
    for number, experts in enumerate(reference.experts, 1):
        progress(f"looking for edits that explain the difference on {chosen.probe}", 0, 1)
        departures = call.departures(experts, clock)
        tried = _outcome(Confirming(departures, others, experts, clock), outcome)
        found = max(found, tried, key=lambda each: (each.is_explained, -each.lost))
        programs = (reference.program(call.inputs, each) for each in reference.experts[number:])
        if found.is_explained or (tried.site is not None and all(tried.site in each.places for each in programs)):
            break
        clock.begin()
    return found


def _misshapen(outcome: Outcome) -> list[Answer]:
    return [each for each in outcome.wrong if each.is_misshapen]


def _notes(misshapen: Sequence[Answer], left_out: int) -> list[str]:
    notes = [
        f"the port's result has the shape {one.actual.shape} on {one.probe}; expected {one.shape}"
        for one in misshapen[:1]
    ]
    later = f"later differences are not listed ({left_out}), because an unexplained difference may cause them"
    return notes + [f"{later}: fix the listed differences first"] * (left_out > 0)


def _unlocated(outcome: Outcome) -> Divergence:
    worst = outcome.worst
    return Divergence("answer", worst.error, worst.budget, probe=worst.probe, is_misshapen=worst.is_misshapen)


def _reshaped(outcome: Outcome, residual: float, *, is_explained: bool) -> list[Divergence]:
    for one in _misshapen(outcome):
        if one.is_reshaped:
            says = f"your port returns a result of the shape {one.actual.shape} instead of {one.shape}"
            causes = (Cause(RESHAPED, says, None, residual, 1.0),) if is_explained else ()
            return [Divergence("answer", math.inf, one.budget, causes, probe=one.probe, is_misshapen=True)]
    return []


def _outcome(confirming: Confirming, outcome: Outcome) -> Outcome:
    found, now = confirming.found()
    site = next((each.step.site for each in found if each.edit is None), None)
    if not now.agrees:  # An edit is a cause only if the reference with all edits computes the port's answer.
        found = list(map(without_edit, found))
    found, every = without_consequences(found), found
    residual = confirming.departures.comparer.residual(now)
    told = [_divergence(each, residual, outcome.worst) for each in found]
    faults = list({str((each.where, each.causes, each.source, each.reference_source)): each for each in told}.values())
    misshapen = _misshapen(outcome)
    notes = _notes(misshapen, len(every) - len(found))
    faults += _reshaped(outcome, residual, is_explained=now.agrees)
    lost, faults = len(now.lost), faults or [_unlocated(outcome)]
    outcome = dataclasses.replace(outcome, faults=faults, notes=notes, lost=lost, site=site)
    if not (found and outcome.is_explained):
        return outcome
    notes = []
    for each, others in confirming.equal_edits(found):
        if others:
            says = f"another cause would explain the difference equally well: the port {'; or '.join(others)}"
            notes.append(f"{each.where}: {says}")
    probes = ", ".join(each.probe for each in outcome.answers)
    return dataclasses.replace(
        outcome, notes=[*notes, f"with the reported faults, the reference returns the port's results on {probes}"]
    )


def without_consequences(found: Sequence[Departure]) -> list[Departure]:
    """Drop unexplained differences that depend on an earlier unexplained difference at another line."""
    kept: list[Departure] = []
    for each in found:
        before = (one for one in kept if one.edit is None and one.by is each.by and one.step.line != each.step.line)
        if each.edit is not None or not any(_leads_to(one, each) for one in before):
            kept.append(each)
    return kept


def _leads_to(one: Departure, other: Departure) -> bool:
    """Return whether `other` depends on `one`. A call with several results counts as several operations."""
    port, program = other.by.comparer.port, other.by.comparer.program
    first = port.operations[one.operation]
    same = (i for i, each in enumerate(port.operations) if (each.source, each.inputs) == (first.source, first.inputs))
    is_before = one.step.number in ancestors([other.step.number], program.makers)
    return is_before or any(port.leads_to(index, other.operation) for index in same)


def _divergence(departure: Departure, residual: float, worst: Answer) -> Divergence:
    edit, only = departure.edit, f", in {' and '.join(departure.only_in)} only" if departure.only_in else ""
    only += f", and likewise at {' and '.join(departure.likewise)}" if departure.likewise else ""
    causes = () if edit is None else (Cause(edit.kind, f"your port {edit.says}{only}", None, residual, 1.0),)
    lines = departure.port_line, departure.reference_line
    source, theirs = (None if line is None else dataclasses.asdict(line) for line in lines)
    return Divergence(
        departure.where,
        worst.error,
        worst.budget,
        causes,
        probe=worst.probe,
        source=source,
        reference_source=theirs,
        is_misshapen=worst.is_misshapen and not worst.is_reshaped,
    )
