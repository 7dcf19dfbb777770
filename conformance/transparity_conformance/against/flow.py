"""The data flow of a program. A value's dominator is an earlier value on every path from the inputs to the value."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from transparity_conformance.listening.program import Change, Program, Step, Values

START = -1
"""The index of an artificial value that dominates all inputs."""


@dataclass(frozen=True)
class OfSegment:
    """A change that replaces a whole segment. `DataFlow.through` runs the segment without this change."""

    change: Change

    def __call__(self, values: Values) -> Any:
        return self.change(values)


class DataFlow:
    """The values that depend on the program's main input, each with its nearest dominator. Masks, position tables and
    parameters do not depend on the main input."""

    def __init__(
        self, program: Program, main: Collection[str], rounded: Mapping[str, Sequence[np.ndarray]] | None = None
    ) -> None:
        self.program, self.rounded = program, rounded or {}
        """For each dtype (bfloat16, float16), the port's values that this dtype represents exactly."""
        self._between: dict[tuple[int, int], list[Step]] = {}
        self.changes: Mapping[int, Change] = {}
        """The changes to apply when the steps of a segment run again."""
        self.passes: dict[int, int] = {i: START for i, name in program.names.items() if name in main}
        """The nearest dominator of each value."""
        self._depth = {START: 0, **dict.fromkeys(self.passes, 1)}
        for step in program.steps:
            given = [index for index in step.inputs if index in self._depth]
            if given:
                passed = functools.reduce(self._shared, given)
                for index in step.outputs:
                    self.passes[index] = passed
                    self._depth[index] = self._depth[passed] + 1

    def within(self, changes: Mapping[int, Change]) -> Self:
        flow = copy.copy(self)
        flow.changes = {number: each for number, each in changes.items() if not isinstance(each, OfSegment)}
        return flow

    def _shared(self, one: int, other: int) -> int:
        while one != other:
            if self._depth[one] >= self._depth[other]:
                one = self.passes[one]
            else:
                other = self.passes[other]
        return one

    def behind(self, value: int) -> Iterator[int]:
        value = self.passes.get(value, START)
        while value != START:
            yield value
            value = self.passes[value]

    def between(self, start: int, end: int) -> list[Step]:
        if (start, end) not in self._between:
            program, wanted, steps = self.program, {end}, []
            first = program.maker.get(start, -1)
            for step in reversed(program.steps[first + 1 : program.maker[end] + 1]):
                if not wanted.isdisjoint(step.outputs):
                    steps.append(step)
                    wanted.update(index for index in step.inputs if index in self._depth and index != start)
            self._between[start, end] = steps[::-1]
        return self._between[start, end]

    def through(self, start: int, end: int, value: Any, values: Values) -> Any:
        """Run the steps of a segment on `value` in its recorded shape. Skip a view if the size of the view's input
        differs from the recorded size."""
        # A segment of a later layer may read values that this run has not computed; use the values of the recorded run.
        now = ChainMap({start: as_shaped(value, self.program.values[start])}, values, self.program.values)
        for step in self.between(start, end):
            given = now[step.inputs[0]]
            if "view" in step.name and given.numel() != self.program.values[step.output].numel():
                now[step.output] = given
            else:
                self.program.run_one(step, now, self.changes, None)
        return now[end]


def as_shaped(value: Any, meant: Any) -> Any:
    """Merge, split or reorder axes to match `meant`. Return `value` unchanged if this is ambiguous or impossible."""
    if value.shape == meant.shape or value.numel() != meant.numel():
        return value
    if value.ndim != meant.ndim:
        ends, others = (set(itertools.accumulate(each.shape, operator.mul)) for each in (value, meant))
        return value.reshape(meant.shape) if ends <= others or others <= ends else value
    orders = [each for each in itertools.permutations(range(value.ndim)) if value.permute(each).shape == meant.shape]
    return value.permute(orders[0]) if len(orders) == 1 else value
