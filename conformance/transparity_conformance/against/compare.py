"""A port beside a reference, on many inputs: whether they agree, and if not, on which lines they part and why."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from transparity_conformance.against.departures import Comparer, Comparison, Departure, Recorded, changes_at
from transparity_conformance.against.values import agreeing, shares
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.diagnosis.judge import Progress, ignore_progress
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.listening.operation import Operation, Source
from transparity_conformance.listening.program import Change, Program
from transparity_conformance.report.comparison import difference

MOST_DEPARTURES = 12
"""Places that are told in one run."""

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

    @property
    def agrees(self) -> bool:
        return self.error <= self.budget


@dataclass(frozen=True, eq=False)
class Parting:
    """One departure, with the lines of both, and what explains it on every probe that was tried."""

    source: Source | None
    reference_source: Source | None
    module: str
    says: str
    """The difference in words; empty if nothing explains it."""
    kind: str = ""
    others: Sequence[str] = ()
    places: int = 0
    """The steps of the reference that were edited."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The comparison of a port with a reference."""

    answers: Sequence[Answer]
    partings: Sequence[Parting] = ()
    residual: float = float("nan")
    """The largest difference between the answers with all edits in the reference."""
    confirmed: Sequence[str] = ()
    """The probes on which the edited reference gives the port's answer."""
    unconfirmed: Sequence[str] = ()
    notes: Sequence[str] = field(default=())

    @property
    def wrong(self) -> list[Answer]:
        return [each for each in self.answers if not each.agrees]


def compared(
    reference: Reference,
    port: Port,
    listen: Listen,
    probes: Mapping[str, Inputs],
    clock: Clock,
    progress: Progress = ignore_progress,
) -> Outcome:
    """Compare a port with a reference on every probe; where they differ, find out where and why."""
    answers = []
    for count, (name, inputs) in enumerate(probes.items()):
        progress(f"comparing {name}", count, len(probes))
        answers.append(_answer(reference, port, name, inputs))
    outcome = Outcome(answers)
    return outcome if not outcome.wrong else _explained(reference, listen, outcome, clock, progress)


def _answer(reference: Reference, port: Port, name: str, inputs: Inputs) -> Answer:
    expected, budget = reference.answer(inputs)
    actual = np.asarray(port(inputs), np.float64)
    error = difference(actual, expected)
    changed = int((np.abs(actual - expected) > budget).sum()) if actual.shape == expected.shape else expected.size
    return Answer(name, inputs, error, budget, actual, changed)


def _explained(reference: Reference, listen: Listen, outcome: Outcome, clock: Clock, progress: Progress) -> Outcome:
    """Find the departures on one probe, and confirm their edits on the others."""
    chosen = _most_telling(outcome.wrong)
    progress(f"recording both on {chosen.probe}", 0, 1)
    comparer = _comparer(reference, listen, chosen.inputs, clock)
    others = {each.probe: OtherCall(reference, listen, each) for each in _confirming(outcome.answers, chosen)}
    found, now, failing = _confirmed(comparer, others)
    if not found:
        return dataclasses.replace(outcome, notes=("no operation of the port differs from the reference's",))
    return dataclasses.replace(
        outcome,
        partings=[_parting(comparer, each if now.agrees else dataclasses.replace(each, edit=None)) for each in found],
        residual=difference(now.values[comparer.program.answer].numpy(), comparer.port.answer),
        confirmed=[chosen.probe, *(name for name in others if name not in failing)],
        unconfirmed=failing,
    )


def _confirmed(comparer: Comparer, others: Mapping[str, OtherCall]) -> tuple[list[Departure], Comparison, list[str]]:
    """Find departures whose edits give the port's answer on all probes; what an edit does on one alone is luck."""
    while True:
        found, now = comparer.departures(MOST_DEPARTURES)
        tried, failing = found, _failing(comparer, found, others)
        while failing and (replaced := _with_another(tried)) is not None:
            tried = replaced
            failing = _failing(comparer, tried, others)
        if not failing:
            return tried, comparer.compared(comparer.changes_of(tried), now.shares), []
        doubtful = max((each for each in found if each.edit), key=lambda each: each.edit.rank, default=None)
        if doubtful is None or doubtful.edit is None or not clock_left(comparer):
            return [dataclasses.replace(each, edit=None) for each in found], now, failing
        for each in (doubtful.edit, *doubtful.others):
            comparer.refuse(doubtful.step, each)


def clock_left(comparer: Comparer) -> bool:
    """Return whether there is time for another search."""
    return comparer.clock.left > 0


def _failing(comparer: Comparer, found: Sequence[Departure], others: Mapping[str, OtherCall]) -> list[str]:
    """The probes on which the edits do not give the port's answer; none where a departure has no edit."""
    if any(each.edit is None for each in found):
        return []
    return [name for name, other in others.items() if not other.is_explained(comparer, found)]


def _confirming(answers: Sequence[Answer], chosen: Answer) -> list[Answer]:
    """The probes for confirmation: those of other shapes first."""
    rest = [each for each in answers if each is not chosen]
    return sorted(rest, key=lambda each: (each.agrees, each.actual.size == chosen.actual.size))[:CONFIRMED_ON]


CONFIRMED_ON = 3
"""Further probes on which edits are confirmed."""


def _most_telling(wrong: Sequence[Answer]) -> Answer:
    """The probe with the largest share of wrong numbers, the smallest of several: most parts of the model take part."""
    return max(wrong, key=lambda each: (round(each.changed / each.actual.size, 1), -each.actual.size))


def _comparer(reference: Reference, listen: Listen, inputs: Inputs, clock: Clock) -> Comparer:
    program = reference.program(inputs)
    answer, operations = listen(inputs)
    recorded = Recorded(operations, np.asarray(answer, np.float64))
    return Comparer(program, recorded, reference.dtype, reference.main(inputs), reference.numbers, clock)


class OtherCall:
    """A call on which the edits that explain another one are run."""

    def __init__(self, reference: Reference, listen: Listen, answer: Answer) -> None:
        self.reference, self.listen, self.answer = reference, listen, answer

    @functools.cached_property
    def program(self) -> Program:
        """The reference's."""
        return self.reference.program(self.answer.inputs)

    @functools.cached_property
    def rounded(self) -> dict[str, list[np.ndarray]]:
        """The port's values that a shorter dtype can hold."""
        answer, operations = self.listen(self.answer.inputs)
        return Recorded(operations, np.asarray(answer, np.float64)).rounded()

    def is_explained(self, comparer: Comparer, found: Sequence[Departure]) -> bool:
        """Return whether the edits give the port's answer, within what rounding explains with them."""
        program, changes, flow = self.program, dict[int, Change](), comparer.flow_of(self.program)
        for each in found:
            assert each.edit is not None
            if each.edit.kind == "rounding":
                flow.rounded = self.rounded
            changes |= changes_at(each.edit, _same_steps(comparer.program, each.steps, program), program, flow)
        try:
            given = program.run(changes)[program.answer]
            share = self.answer.budget / max(float(given.abs().max()), np.finfo(float).tiny)
            return agreeing(given, self.answer.actual, share) or agreeing(
                given, self.answer.actual, shares(program, self.reference.dtype, changes)[program.answer]
            )
        except Exception:  # noqa: BLE001 - any operation may refuse what an edit gives it
            return False


def _same_steps(program: Program, numbers: Sequence[int], other: Program) -> list[int]:
    """The steps of another call at the same sites: in the same layers."""
    found = []
    for number in numbers:
        site = program.steps[number].site
        order, places = program.places[site].index(number), other.places.get(site, ())
        found += places[order : order + 1]
    return found


def _with_another(found: Sequence[Departure]) -> list[Departure] | None:
    """The departures with the next edit in place of one that failed; None if there is none left."""
    for place, each in enumerate(found):
        if each.others:
            first, *rest = each.others
            return [*found[:place], dataclasses.replace(each, edit=first, others=rest), *found[place + 1 :]]
    return None


def _parting(comparer: Comparer, departure: Departure) -> Parting:
    edit = departure.edit
    return Parting(
        comparer.port_line(departure),
        comparer.reference_line(departure),
        departure.step.module,
        edit.says if edit else "",
        edit.kind if edit else "",
        [each.says for each in departure.others],
        len(departure.steps),
    )
