"""Match the values of a call of the port with the values of the same call of the reference."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from transparity_conformance.against.edits.edit import VIEWS, At, Edit, short
from transparity_conformance.against.flow import DataFlow, OfSegment
from transparity_conformance.against.reference import shares
from transparity_conformance.diagnosis.thresholds import REMEASURED_WITHIN
from transparity_conformance.listening.program import Change, Program, Values
from transparity_conformance.listening.pytorch import SHAPE_ALONE
from transparity_conformance.matching.graph import ancestors, leading_nowhere
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.matching.values import Known, agreeing, apart, same_numbers

PARTS = ("select", "slice", "narrow")
"""Operations that select some elements of an operand."""


@dataclass(frozen=True, eq=False)
class Comparison:
    changes: Mapping[int, Change]
    values: Values
    have: Mapping[int, Sequence[int]]
    """For each value of the reference, the port's operations with the same value."""
    lost: Sequence[int]
    """The port's unmatched operations whose results affect no matched value."""
    agrees: bool
    shares: Mapping[int, float]
    """The tolerance of each value, divided by the value's largest element."""

    @functools.cached_property
    def matched(self) -> Mapping[int, Sequence[int]]:
        found: dict[int, list[int]] = {}
        for index in sorted(self.have):
            for operation in self.have[index]:
                found.setdefault(operation, []).append(index)
        return found


class Comparer:
    def __init__(
        self, program: Program, port: Recorded, dtype: str, main: Collection[str], kept: np.ndarray | None = None
    ) -> None:
        self.program, self.port, self.dtype, self.kept = program, port, dtype, kept
        self.flow = DataFlow(program, main, port.rounded)
        self._shares = shares(program, dtype)
        self._known = Known({index: port.prints[index] for index in port.relevant})

    @functools.cached_property
    def relevant(self) -> Collection[int]:
        program = self.program
        made = program.answer in program.maker  # a model may return one of its inputs
        return ancestors([program.maker[program.answer]], program.makers) if made else frozenset()

    def at(self, number: int, changes: Mapping[int, Change] = MappingProxyType({})) -> At:
        return At(self.program, self.flow.within(changes), self.program.steps[number])

    def changes(self, edit: Edit, numbers: Collection[int], before: Mapping[int, Change]) -> dict[int, Change]:
        return {**before, **changes_at(edit, numbers, self.program, self.flow.within(before))}

    def compared(self, changes: Mapping[int, Change], within: Mapping[int, float] | None = None) -> Comparison:
        values = self.program.run(changes) if changes else self.program.values
        return self._matched(changes, values, {}, within or self._shares)

    def _matched(
        self, changes: Mapping[int, Change], values: Values, have: dict[int, Sequence[int]], within: Mapping[int, float]
    ) -> Comparison:
        program = self.program
        for index in values.keys() - have.keys():
            if program.maker.get(index, -1) in self.relevant or index in program.given:
                have[index] = self._known.equal_to(values[index], within.get(index, 0.0))
        found = {operation for operations in have.values() for operation in operations}
        nowhere = leading_nowhere(
            self.port.relevant,
            found.__contains__,
            lambda index: self.port.readers.get(index, ()),
            self.port.parts.__contains__,
        )
        lost = [index for index in sorted(nowhere) if self.port.prints[index] is not None]
        return Comparison(changes, values, have, lost, self.is_answer(values, within), within)

    @functools.cached_property
    def _is_not_finite(self) -> bool:
        return not bool(self.program.values[self.program.answer].isfinite().any())

    def is_answer(self, values: Values, within: Mapping[int, float]) -> bool:
        if not np.isfinite(self.port.answer).any() and not self._is_not_finite:
            return False  # nearly any mistake makes all elements NaN or infinite
        return agreeing(values[self.program.answer], self.port.answer, within.get(self.program.answer, 0.0), self.kept)

    def residual(self, now: Comparison) -> float:
        ours, theirs = now.values[self.program.answer].numpy(), self.port.answer
        theirs = theirs.reshape(ours.shape) if theirs.size == ours.size else theirs
        return float(apart(ours, theirs, self.kept).max())

    def is_slight(self, now: Comparison) -> bool:
        """Return whether the answer's error is so small that the first wrong value may still match."""
        return self.residual(now) <= self._slight(self.program.answer, now)

    def is_slightly_changed(self, index: int, value: Any, now: Comparison) -> bool:
        before = now.values[index]
        if value.shape != before.shape or not value.is_floating_point() or not value.numel():
            return False
        return float((value - before).abs().max()) <= self._slight(index, now)

    def _slight(self, index: int, now: Comparison) -> float:
        largest = float(np.abs(now.values[index].numpy()).max())
        return REMEASURED_WITHIN[self.dtype] * now.shares.get(index, 0.0) * largest

    def tried(self, changes: Mapping[int, Change], since: Comparison) -> Comparison | None:
        """Run the reference with `changes`; reuse unchanged values of the earlier run `since`. Return None if the new
        run raises an exception."""
        other = {number for number, change in changes.items() if since.changes.get(number) is not change}
        try:
            if not since.changes.keys() <= changes.keys():
                return self.compared(changes, since.shares)
            values, again = self.program.again(other, since.values, changes)
            have = {index: found for index, found in since.have.items() if index not in again}
            return self._matched(changes, values, have, since.shares)
        except Exception:  # noqa: BLE001 - an edit may pass invalid arguments to an operation
            return None

    def measured(self, now: Comparison) -> Comparison:
        try:
            return self.compared(now.changes, shares(self.program, self.dtype, now.changes))
        except Exception:  # noqa: BLE001 - some changes fail in the port's precision
            return now

    def fronts(self, now: Comparison) -> tuple[list[int], list[int]]:
        """Return the port's first unmatched operations, and the reference's first unmatched steps. Prefer steps that
        read the same values as these operations."""
        lost, missing, program = set(now.lost), self.missing(now), self.program
        if not lost and not missing and now.values[program.answer].shape == self.port.answer.shape:
            return self._reordering()
        port = [index for index in now.lost if lost.isdisjoint(self.port.operations[index].inputs)]
        by_input = {number for number in missing if program.steps[number].output in self.flow.passes} or missing
        makers = {number: program.makers(number) for number in by_input}
        first = [number for number in sorted(by_input) if by_input.isdisjoint(makers[number])]
        shared = set(self.counterparts(now, port))
        return port, [number for number in first if shared & makers[number]] or first

    def _reordering(self) -> tuple[list[int], list[int]]:
        """Return the port's last operation that reorders the answer's elements. Also return the reference's final views
        (such as a transposition), and the step before these views."""
        operations, at = self.port.operations, next(iter(self.port.made_answer), -1)
        while at >= 0:
            value = operations[at].value
            before = next((i for i in operations[at].inputs if same_numbers(operations[i].value, value)), -1)
            if before >= 0 and not np.array_equal(operations[before].value.ravel(), value.ravel()):
                break
            at = before
        program, steps = self.program, [self.program.maker[self.program.answer]]
        while short(program.steps[steps[-1]]) in VIEWS and (makers := program.makers(steps[-1])):
            steps.append(min(makers))
        return [at] if at >= 0 else [], steps

    def counterparts(self, now: Comparison, port: Collection[int]) -> list[int]:
        """Return the reference's steps that compute the same values as the inputs of the port's operations `port`."""
        maker = self.program.maker
        given = {each for index in port for each in self.port.operations[index].inputs}
        return sorted({maker[value] for each in given for value in now.matched.get(each, ()) if value in maker})

    def codes(self, now: Comparison, operation: int) -> set[Any]:
        makers = (self.program.maker.get(value) for value in now.matched.get(operation, ()))
        return {code for each in makers if each is not None for code, _ in self.program.steps[each].places}

    def missing(self, now: Comparison) -> set[int]:
        """Return the reference's unmatched steps whose results affect no matched value."""
        steps, have = self.program.steps, now.have
        return leading_nowhere(
            self.relevant,
            lambda number: any(have.get(index) for index in steps[number].results),
            lambda number: [
                each for each in self.program.readers_of(number) if not SHAPE_ALONE.search(steps[each].name)
            ],
            lambda number: short(steps[number]) in PARTS,
        )


def changes_at(edit: Edit, numbers: Collection[int], program: Program, flow: DataFlow) -> dict[int, Change]:
    changes = {}
    for number in numbers:
        with contextlib.suppress(Exception):  # the step has another form, for example without the argument
            if (change := edit.make(At(program, flow, program.steps[number]))) is not None:
                changes[number] = OfSegment(change) if edit.behind else change
    return changes
