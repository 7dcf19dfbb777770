"""Compare a port with a reference on many inputs; find the lines where they diverge, and why."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.against.confirm import Call, Confirming, Listen, without_edit
from transparity_conformance.against.departures import Departure
from transparity_conformance.against.probes import Answer, most_telling
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.matching.values import apart
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, Divergence

Port = Callable[[Inputs], np.ndarray]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The comparison of a port with a reference."""

    answers: Sequence[Answer]
    faults: Sequence[Divergence] = ()
    """The places where both diverge, with both lines and with the edit that explains the difference."""
    notes: Sequence[str] = ()
    lost: float = math.inf
    """The number of operations of the port without a counterpart, after all explained differences."""

    def with_answers(self, other: Outcome) -> Outcome:
        """Return this outcome, with the answers of another outcome added."""
        return dataclasses.replace(self, answers=[*self.answers, *other.answers])

    def because(self, cause: Cause) -> Outcome:
        """Return the outcome with a single cause for all faults."""
        return dataclasses.replace(self, faults=[dataclasses.replace(each, causes=(cause,)) for each in self.faults])

    @property
    def is_explained(self) -> bool:
        """Return whether edits explain all differences."""
        return bool(self.faults) and all(each.causes for each in self.faults)

    @property
    def wrong(self) -> list[Answer]:
        return [each for each in self.answers if not each.agrees]


def judged(
    reference: Reference, port: Port, probes: Mapping[str, Inputs], progress: Progress = ignore_progress
) -> Outcome:
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
    if error > budget:  # The error at one point may be small by chance, so measure the budget at several points.
        budget = max(budget, reference.answer(inputs)[1])
    wrong = errors > budget
    by_position = wrong.any(axis=tuple(axis for axis in range(wrong.ndim) if axis != 1))
    first = int(by_position.argmax()) if wrong.ndim > 1 else 0
    return Answer(name, inputs, error, budget, actual, int(wrong.sum()), first, expected.shape)


def explained(reference: Reference, listen: Listen, outcome: Outcome, clock: Clock, progress: Progress) -> Outcome:
    """Find the differences on one probe, and confirm their edits on the other probes."""
    chosen, found = most_telling(outcome.wrong), outcome
    rest = sorted((each for each in outcome.answers if each is not chosen), key=lambda each: each.size)
    call, *others = (Call(reference, listen, each) for each in (chosen, *rest))
    for experts in reference.experts:
        progress(f"looking for edits that explain {chosen.probe}", 0, 1)
        departures = call.departures(experts, clock)
        tried = _outcome(Confirming(departures, others, experts, clock), outcome)
        found = max(found, tried, key=lambda each: (each.is_explained, -each.lost))
        if found.is_explained:
            break
        clock.begin()
    return found


def _outcome(confirming: Confirming, outcome: Outcome) -> Outcome:
    found, now = confirming.found()
    if not now.agrees:  # Edits are causes only if all of them together give the port's answer.
        found = list(map(without_edit, found))
    residual = confirming.departures.comparer.residual(now)
    worst = max(outcome.wrong, key=lambda each: share(each.error, each.budget))
    told = [_divergence(each, residual, worst) for each in found]
    faults = list({str((each.where, each.causes, each.source, each.reference_source)): each for each in told}.values())
    unlocated = Divergence("answer", worst.error, worst.budget, probe=worst.probe, is_misshapen=worst.is_misshapen)
    shapes = f"answer has the shape {worst.actual.shape} on {worst.probe}, expected {worst.shape}"
    notes = [shapes] if worst.is_misshapen else []
    outcome = dataclasses.replace(outcome, faults=faults or [unlocated], notes=notes, lost=len(now.lost))
    if not outcome.is_explained:
        return outcome
    probes = ", ".join(each.probe for each in outcome.answers)
    confirmed = f"the edited reference gives the port's answers on {probes}"
    return dataclasses.replace(outcome, notes=[*_other_explanations(found), confirmed])


def _other_explanations(found: Sequence[Departure]) -> Iterator[str]:
    for each in found:
        if each.others:
            says = "; or ".join(other.edit.says for other in each.others[:3])
            yield f"{each.step.module or 'answer'}: equally well explained if the port {says}"


def _divergence(departure: Departure, residual: float, worst: Answer) -> Divergence:
    edit, only = departure.edit, f", in {' and '.join(departure.only_in)} only" if departure.only_in else ""
    causes = () if edit is None else (Cause(edit.kind, f"your port {edit.says}{only}", None, residual, 1.0),)
    lines = departure.port_line, departure.reference_line
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
