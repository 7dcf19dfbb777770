"""A port beside a reference, on many inputs: whether they agree, and if not, on which lines they part and why."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity_conformance.against.comparer import Comparer, Comparison, changes_at
from transparity_conformance.against.departures import Departure, Departures
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.against.probes import is_padded
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.rounding import shares
from transparity_conformance.against.search import EditSearch
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.listening.operation import Operation
from transparity_conformance.listening.program import Change, Program
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.matching.values import agreeing, apart
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, Divergence

Port = Callable[[Inputs], np.ndarray]
Listen = Callable[[Inputs], tuple[np.ndarray, Sequence[Operation]]]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answers of both to one probe."""

    probe: str
    inputs: Inputs
    error: float
    budget: float
    actual: np.ndarray
    """The port's answer."""
    changed: int
    """Numbers of the answer beyond the budget."""
    first: int
    """The first position with one of them; 0 for an answer of another shape."""
    shape: tuple[int, ...]
    """The shape of the reference's answer."""

    @property
    def agrees(self) -> bool:
        return self.error <= self.budget

    @property
    def size(self) -> int:
        """Numbers of the reference's answer."""
        return math.prod(self.shape)

    @property
    def is_misshapen(self) -> bool:
        return self.actual.shape != self.shape

    @property
    def is_padded(self) -> bool:
        """Whether a mask hides something."""
        return is_padded(self.inputs)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The comparison of a port with a reference."""

    answers: Sequence[Answer]
    faults: Sequence[Divergence] = ()
    """The departures, each with both lines and with the edit that explains it."""
    notes: Sequence[str] = ()

    def with_answers(self, other: Outcome) -> Outcome:
        """Return the outcome with the answers of another one."""
        return dataclasses.replace(self, answers=[*self.answers, *other.answers])

    def because(self, cause: Cause) -> Outcome:
        """Return the outcome with one cause of all faults."""
        return dataclasses.replace(self, faults=[dataclasses.replace(each, causes=(cause,)) for each in self.faults])

    @property
    def is_explained(self) -> bool:
        """Whether edits explain all differences."""
        return bool(self.faults) and all(each.causes for each in self.faults)

    @property
    def wrong(self) -> list[Answer]:
        return [each for each in self.answers if not each.agrees]


def judged(
    reference: Reference, port: Port, probes: Mapping[str, Inputs], progress: Progress = ignore_progress
) -> Outcome:
    """Compare a port's answers with the reference's."""
    answers = []
    for count, (name, inputs) in enumerate(probes.items()):
        progress(f"comparing {name}", count, len(probes))
        answers.append(_answer(reference, port, name, inputs))
    return Outcome(answers)


def _answer(reference: Reference, port: Port, name: str, inputs: Inputs) -> Answer:
    expected, budget = reference.near(inputs)
    actual = np.asarray(port(inputs), np.float64)
    if actual.shape != expected.shape:
        return Answer(name, inputs, math.inf, budget, actual, expected.size, 0, expected.shape)
    kept = reference.kept(inputs, expected.shape)
    errors = apart(actual, expected, kept)
    error = float(errors.max())
    if error > budget:  # one point may err little by luck
        budget = max(budget, reference.answer(inputs)[1])
    wrong = errors > budget
    by_position = wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != 1))
    first = int(by_position.argmax()) if wrong.ndim > 1 else 0
    return Answer(name, inputs, error, budget, actual, int(wrong.sum()), first, expected.shape)


def explained(reference: Reference, listen: Listen, outcome: Outcome, clock: Clock, progress: Progress) -> Outcome:
    """Find the departures on one probe, and confirm their edits on others."""
    chosen, found = _most_telling(outcome.wrong), outcome
    answer, operations = listen(chosen.inputs)
    recorded = Recorded(operations, np.asarray(answer, np.float64))
    others = [OtherCall(reference, listen, each) for each in outcome.answers if each is not chosen]
    for experts in reference.experts:
        progress(f"looking for what explains {chosen.probe}", 0, 1)
        program, main = reference.program(chosen.inputs, experts), reference.main(chosen.inputs)
        kept = reference.kept(chosen.inputs, recorded.answer.shape)
        comparer = Comparer(program, recorded, reference.dtype, main, kept)
        departures = Departures(comparer, EditSearch(comparer, reference.numbers, clock))
        tried = _outcome(departures, others, chosen, outcome, clock)
        found = tried if found is outcome or tried.is_explained else found
        if found.is_explained:
            break
        clock.begin()
    return found


def _outcome(
    departures: Departures, others: Sequence[OtherCall], chosen: Answer, outcome: Outcome, clock: Clock
) -> Outcome:
    found, now = _confirmed(departures, others, clock)
    if not now.agrees:  # an edit is a cause only if all of them together give the port's answer
        found = list(map(_without_edit, found))
    residual = departures.comparer.residual(now)
    worst = max(outcome.wrong, key=lambda each: share(each.error, each.budget))
    told = [_divergence(departures, each, residual, worst) for each in found]
    faults = list({str((each.where, each.causes, each.source, each.reference_source)): each for each in told}.values())
    unlocated = Divergence("answer", worst.error, worst.budget, probe=worst.probe, is_misshapen=worst.is_misshapen)
    shapes = f"{worst.probe}: the port's answer has the shape {worst.actual.shape}; the reference's has {worst.shape}"
    notes = [shapes] if worst.is_misshapen else []
    outcome = dataclasses.replace(outcome, faults=faults or [unlocated], notes=notes)
    if not outcome.is_explained:
        return outcome
    probes = ", ".join(each.probe for each in (chosen, *(other.answer for other in others)))
    confirmed = f"the edited reference gives the port's answers on {probes}"
    return dataclasses.replace(outcome, notes=[*_other_explanations(found), confirmed])


def _without_edit(departure: Departure) -> Departure:
    return dataclasses.replace(departure, edit=None, others=())


def _other_explanations(found: Sequence[Departure]) -> Iterator[str]:
    for each in found:
        if each.others:
            says = "; or ".join(other.edit.says for other in each.others[:3])
            yield f"{each.step.module or 'answer'}: equally well explained if the port {says}"


def _divergence(departures: Departures, departure: Departure, residual: float, worst: Answer) -> Divergence:
    edit = departure.edit
    causes = () if edit is None else (Cause(edit.kind, f"your port {edit.says}", None, residual, 1.0),)
    lines = departures.port_line(departure), departures.reference_line(departure)
    source, theirs = (None if line is None else dataclasses.asdict(line) for line in lines)
    where = departure.step.module or "answer"
    return Divergence(
        where,
        worst.error,
        worst.budget,
        causes,
        probe=worst.probe,
        source=source,
        reference_source=theirs,
        is_misshapen=worst.is_misshapen,
    )


def _confirmed(departures: Departures, others: Sequence[OtherCall], clock: Clock) -> tuple[list[Departure], Comparison]:
    """Find departures whose edits give the port's answer on all calls: on one alone it may be luck."""
    while True:
        found, now = departures.found()
        tried, failing = found, _failing(departures, found, others)
        while failing and (replaced := _with_another(tried)) is not None:
            tried = replaced
            failing = _failing(departures, tried, others)
        if not failing:
            return tried, now if tried is found else _run_again(departures, tried, now)
        doubtful = max((each for each in found if each.edit), key=_rank)
        if clock.left <= 0:
            return list(map(_without_edit, found)), now
        assert doubtful.edit is not None
        departures.search.refuse(doubtful.step, doubtful.edit)
        for other in doubtful.others:
            departures.search.refuse(other.step, other.edit)


def _run_again(departures: Departures, found: Sequence[Departure], now: Comparison) -> Comparison:
    return departures.comparer.measured(departures.comparer.compared(departures.changes_of(found), now.shares))


def _rank(departure: Departure) -> int:
    return departure.edit.rank if departure.edit else -1


def _failing(departures: Departures, found: Sequence[Departure], others: Sequence[OtherCall]) -> list[OtherCall]:
    """The calls on which the edits do not give the port's answer; none where nothing was found, or a departure has no
    edit."""
    if not found or any(each.edit is None for each in found):
        return []
    return [each for each in others if not each.is_explained(departures.comparer, found)]


def _most_telling(wrong: Sequence[Answer]) -> Answer:
    """The probe in which most parts of a model take part: of several rows and tokens without padding, most numbers
    wrong, the smallest of several."""

    def key(each: Answer) -> tuple[Any, ...]:
        is_single = min(min(value.shape[:2], default=1) for value in each.inputs.values()) == 1
        return not is_single, not each.is_padded, round(each.changed / each.size, 1), -each.size

    return max(wrong, key=key)


class OtherCall:
    """A call on which the edits that explain another one are run."""

    def __init__(self, reference: Reference, listen: Listen, answer: Answer) -> None:
        self.reference, self.listen, self.answer = reference, listen, answer

    @functools.cached_property
    def programs(self) -> list[Program]:
        """The reference's, in each implementation of experts."""
        return [self.reference.program(self.answer.inputs, experts) for experts in self.reference.experts]

    @functools.cached_property
    def rounded(self) -> dict[str, list[np.ndarray]]:
        """The port's values that a shorter dtype can hold."""
        answer, operations = self.listen(self.answer.inputs)
        return Recorded(operations, np.asarray(answer, np.float64)).rounded

    def is_explained(self, comparer: Comparer, found: Sequence[Departure]) -> bool:
        """Return whether the edits give the port's answer, within what rounding explains with them."""
        return any(self._is_explained_in(program, comparer, found) for program in self.programs)

    def _is_explained_in(self, program: Program, comparer: Comparer, found: Sequence[Departure]) -> bool:
        is_rounded = any(each.edit is not None and each.edit.kind == "rounding" for each in found)
        flow = DataFlow(program, self.reference.main(self.answer.inputs), self.rounded if is_rounded else None)
        changes: dict[int, Change] = {}
        for each in found:
            assert each.edit is not None
            changes |= changes_at(each.edit, _same_steps(comparer.program, each.steps, program), program, flow)
        try:
            given = program.run(changes)[program.answer]
            within = self.answer.budget / max(float(given.abs().max()), np.finfo(float).tiny)
            actual, kept = self.answer.actual, self.reference.kept(self.answer.inputs, given.shape)
            if agreeing(given, actual, within, kept):
                return True
            measured = shares(program, self.reference.dtype, changes)
            return agreeing(given, actual, measured.get(program.answer, 0.0), kept)
        except Exception:  # noqa: BLE001 - any operation may refuse what an edit gives it
            return False


def _same_steps(program: Program, numbers: Sequence[int], other: Program) -> list[int]:
    """The steps of another call at the same sites: in the same layers."""
    found: list[int] = []
    for number in numbers:
        site = program.steps[number].site
        order, places = program.places[site].index(number), other.places.get(site, ())
        found += places[order : order + 1]
    return found


def _with_another(found: Sequence[Departure]) -> list[Departure] | None:
    """The departures with the next edit in place of one that failed; None if there is none left."""
    for place, each in enumerate(found):
        if each.others:
            return [*found[:place], each.with_other(0), *found[place + 1 :]]
    return None
