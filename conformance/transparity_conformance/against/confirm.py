"""Try the edits that explain one call on every other call, because one call may agree by chance."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from transparity_conformance.against.comparer import Comparer, Comparison, changes_at
from transparity_conformance.against.departures import Departure, Departures
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.against.probes import Answer, most_telling
from transparity_conformance.against.reference import Inputs, Reference
from transparity_conformance.against.rounding import shares
from transparity_conformance.against.search import EditSearch
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.listening.operation import Operation
from transparity_conformance.listening.program import Change
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.matching.values import agreeing

Listen = Callable[[Inputs], tuple[np.ndarray, Sequence[Operation]]]


class Call:
    """A call of both implementations. The port's operations are recorded when they are needed."""

    def __init__(self, reference: Reference, listen: Listen, answer: Answer) -> None:
        self.reference, self.listen, self.answer, self.inputs = reference, listen, answer, answer.inputs

    @functools.cached_property
    def recorded(self) -> Recorded:
        """Return the recorded call of the port."""
        answer, operations = self.listen(self.inputs)
        return Recorded(operations, np.asarray(answer, np.float64))

    def departures(self, experts: str, clock: Clock) -> Departures:
        """Return the search for differences in the call; `experts` names the reference's implementation of experts."""
        reference, inputs = self.reference, self.inputs
        program, main = reference.program(inputs, experts), reference.main(inputs)
        kept = reference.kept(inputs, self.recorded.answer.shape)
        comparer = Comparer(program, self.recorded, reference.dtype, main, kept)
        has_others = experts != reference.experts[-1]
        return Departures(comparer, EditSearch(comparer, reference.numbers, clock), has_others=has_others)

    def is_explained(self, found: Sequence[Departure]) -> bool:
        """Return whether the reference with the edits gives the port's answer, up to rounding."""
        return any(self._is_explained_in(experts, found) for experts in self.reference.experts)

    def _is_explained_in(self, experts: str, found: Sequence[Departure]) -> bool:
        program = self.reference.program(self.inputs, experts)
        is_rounded = any(each.edit is not None and each.edit.kind == "rounding" for each in found)
        flow = DataFlow(program, self.reference.main(self.inputs), self.recorded.rounded if is_rounded else None)
        changes: dict[int, Change] = {}
        for each in found:
            if each.edit is not None:
                changes |= changes_at(each.edit, each.steps_in(program), program, flow.within({**changes}))
        try:
            given = program.run(changes)[program.answer]
            within = self.answer.budget / max(float(given.abs().max()), np.finfo(float).tiny)
            kept = self.reference.kept(self.inputs, given.shape)
            if agreeing(given, self.answer.actual, within, kept):
                return True
            measured = shares(program, self.reference.dtype, changes)
            return agreeing(given, self.answer.actual, measured.get(program.answer, 0.0), kept)
        except Exception:  # noqa: BLE001 - any operation may refuse what an edit gives it
            return False


@dataclasses.dataclass(frozen=True)
class Confirming:
    """Finds edits that explain one call and that also give the port's answer in every other call.

    Another call may have more differences, for example beyond a window or at padding.
    """

    departures: Departures
    others: Sequence[Call]
    experts: str
    clock: Clock

    def found(self) -> tuple[list[Departure], Comparison]:
        """Return the differences in the call, and the last comparison, without edits that other calls contradict."""
        further: list[Departure] = []
        while True:
            found, now = self.departures.found()
            if not now.agrees:
                return found, now
            if any(each.edit is None for each in found):
                return (found if self._is_alike(found) else list(map(without_edit, found))), now
            if (failing := self._failing(found)) is None:
                return found, now
            if tried := self._with_others(found):
                return tried, self._run_again(tried, now)
            more = self._with_further(found, failing, now)
            if more and all(each.edit for each in more):
                return more, self._run_again(more, now)
            further = further or more[len(found) :]
            if self.clock.left <= 0:
                return list(map(without_edit, [*found, *further])), now
            self._refuse(max((each for each in found if each.edit), key=_rank))

    def _failing(self, found: Sequence[Departure]) -> Call | None:
        """Return the first call in which the edits do not give the port's answer, or None."""
        return next((each for each in self.others if not each.is_explained(found)), None)

    def _with_others(self, found: Sequence[Departure]) -> list[Departure] | None:
        """Return the differences with other edits that explain every call, or None if no such edits exist."""
        tried = _with_another(found)
        while tried is not None and self._failing(tried):
            tried = _with_another(tried)
        return tried

    def _with_further(self, found: Sequence[Departure], failing: Call | None, now: Comparison) -> list[Departure]:
        """Return the differences, and further differences in each call that they do not explain.

        If no edit explains such a call, the last difference has no edit. The list is empty if no difference is
        found, or if the first call is no longer explained.
        """
        more = list(found)
        while failing:
            added, after = failing.departures(self.experts, self.clock).found(more)
            more += added
            if not (added and after.agrees and all(each.edit for each in added)):
                return more if added else []
            failing = self._failing(more)
        return more if self._run_again(more, now).agrees else []

    def _is_alike(self, found: Sequence[Departure]) -> bool:
        """Return whether another wrong call differs only on the same lines. The most informative call is tried."""
        wrong = {call.answer: call for call in self.others if not call.answer.agrees}
        if not wrong:
            return True
        added, after = wrong[most_telling([*wrong])].departures(self.experts, self.clock).found(found)
        lines = {each.step.line for each in found if each.edit is None}
        return after.agrees and {each.step.line for each in added} <= lines

    def _run_again(self, found: Sequence[Departure], now: Comparison) -> Comparison:
        comparer = self.departures.comparer
        return comparer.measured(comparer.compared(self.departures.changes_of(found), now.shares))

    def _refuse(self, doubtful: Departure) -> None:
        assert doubtful.edit is not None
        self.departures.search.refuse(doubtful.step, doubtful.edit)
        for other in doubtful.others:
            self.departures.search.refuse(other.step, other.edit)


def without_edit(departure: Departure) -> Departure:
    """Return the difference without its explanation."""
    return dataclasses.replace(departure, edit=None, others=())


def _rank(departure: Departure) -> int:
    return departure.edit.rank if departure.edit else -1


def _with_another(found: Sequence[Departure]) -> list[Departure] | None:
    """Return the differences with an alternative edit for one of them, or None if there is no alternative."""
    for place, each in enumerate(found):
        if each.others:
            return [*found[:place], each.with_other(0), *found[place + 1 :]]
    return None
