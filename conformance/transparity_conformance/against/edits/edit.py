"""An edit: a change to how one step of a program, or a few consecutive steps, compute their results."""

from __future__ import annotations

import functools
import itertools
import linecache
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.text import safe
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.listening.program import Change, Place, Program, Ref, Step, Values, executed, filled

VIEWS = frozenset(
    ["view", "unsafe_view", "transpose", "t", "permute", "expand", "clone", "unsqueeze", "squeeze", "detach", "alias"]
) | {"reshape", "to_copy", "lift_fresh", "as_strided", "unbind", "reshape_alias", "contiguous", "copy"}
"""Operations that return the numbers of their input."""


Function = Callable[[Any], Any]
"""A function of one tensor."""


@dataclass(frozen=True)
class At:
    """The step of a program at which an edit is made."""

    program: Program
    flow: DataFlow
    step: Step

    @property
    def value(self) -> Any:
        """Return the result of the step, or None."""
        return self.program.values.get(self.step.output)

    @property
    def line(self) -> str:
        """Return the innermost expression that runs the step."""
        return line_of(self.step)

    def behind(self, *counts: int) -> list[int] | None:
        """Return the values at which consecutive segments start.

        The last segment ends at this step; every other segment ends where the next segment starts.
        """
        found, end = [], self.step.output
        for count in counts:
            start = next(itertools.islice(starts(self.flow, end), count - 1, None), None)
            if start is None:
                return None
            found.append(start)
            end = start
        return found

    def with_arguments(self, change: Callable[[list[Any], Values], list[Any]]) -> Change:
        """Return the change that runs the step with other arguments, given its own arguments and all values."""

        def changed(values: Values) -> Any:
            args = change(list(filled(self.step.args, values)), values)
            return executed(self.step.func, args, filled(self.step.kwargs, values), None)

        return changed

    def with_argument(self, place: int, change: Function) -> Change:
        """Return the change that runs the step with another argument at one position."""
        return self.with_arguments(lambda args, _: with_item(args, place, change(args[place])))

    def with_result(self, change: Function) -> Change:
        """Return the change that alters the step's result."""

        def changed(values: Values) -> Any:
            now = dict(values)
            self.step.run(now, None)
            return self.fitting(change(now[self.step.output]))

        return changed

    def fitting(self, made: Any) -> Any:
        """Return a tensor with the axes of the value that it replaces; raise `ValueError` if its shape does not fit."""
        made = as_shaped(made, self.value)
        if made.shape != self.value.shape or made.is_floating_point() != self.value.is_floating_point():
            raise ValueError("the result has another shape or kind than the step's result")
        return made


def with_item(items: Sequence[Any], place: int, item: Any) -> list[Any]:
    """Return a copy of a sequence with another item at one position."""
    return [*items[:place], item, *items[place + 1 :]]


Make = Callable[[At], Change | None]


@dataclass(frozen=True)
class Edit:
    """A change of all steps at one place in the code."""

    kind: str
    words: str | Callable[[], str] = field(repr=False)
    """The difference in words, to follow "your port", or a function that returns these words."""
    make: Make = field(repr=False)
    """Returns the change at a step, or None if the edit does not apply there."""
    rank: int = 0
    """Among equally good explanations, the edit with the lowest rank is preferred."""
    behind: tuple[int, ...] = ()
    """For each segment, the number of values by which it starts earlier; empty if only one step is changed."""
    module: str = ""
    """The module in which all steps with parameters are edited; empty if the steps of one line are edited."""

    @functools.cached_property
    def says(self) -> str:
        return self.words if isinstance(self.words, str) else self.words()

    def steps(self, at: At) -> list[Step]:
        """Return the steps that the edit replaces; for swapped segments, the steps of the earlier segment."""
        found = at.behind(*self.behind)
        if not self.behind or found is None:
            return [at.step]
        ends = [at.step.output, *found]
        return computing(at.flow.between(ends[-1], ends[-2])) or [at.step]

    def all_steps(self, at: At) -> Sequence[Step]:
        """Return the steps of all its segments."""
        found = at.behind(*self.behind)
        return at.flow.between(found[-1], at.step.output) if found else [at.step]


@dataclass(frozen=True)
class Context:
    """Numbers that edits may try."""

    numbers: Sequence[float] = ()
    """Numbers of the configuration."""
    wanted: Sequence[np.ndarray] = ()
    """Fingerprints of the port's values at which the programs diverge."""


def short(step: Step) -> str:
    """Return the name of a step's operation, such as `softmax`."""
    return _short(step.func)


@functools.cache
def _short(func: Any) -> str:
    return str(func).split(".")[1].strip("_")


def computing(steps: Sequence[Step]) -> list[Step]:
    """Return the steps that compute new numbers."""
    return [each for each in steps if short(each) not in VIEWS]


def starts(flow: DataFlow, end: int) -> Iterator[int]:
    """Yield the values on which a value depends entirely, the nearest first.

    A step that computes new numbers lies between two of them.
    """
    maker, steps, is_after = flow.program.maker, flow.program.steps, False
    for start in flow.behind(end):
        is_after = is_after or end not in maker or short(steps[maker[end]]) not in VIEWS
        if is_after:
            yield start
            is_after = False
        end = start


def as_shaped(value: Any, meant: Any) -> Any:
    """Return a value in the shape of another value, if there is only one way to do so.

    Neighboring axes may be merged or split. Otherwise, exactly one order of axes must have that shape.
    """
    if value.shape == meant.shape or value.numel() != meant.numel():
        return value
    if value.ndim != meant.ndim:
        ends, others = (set(itertools.accumulate(each.shape, operator.mul)) for each in (value, meant))
        return value.reshape(meant.shape) if ends <= others or others <= ends else value
    orders = [
        order
        for order in itertools.permutations(range(value.ndim))
        if tuple(value.shape[axis] for axis in order) == tuple(meant.shape)
    ]
    return value.permute(orders[0]) if len(orders) == 1 else value


def common_place(steps: Sequence[Step]) -> Place | None:
    """Return the innermost instruction that runs all given steps, or None."""
    first, *others = steps
    return next((place for place in first.places if all(place in each.places for each in others)), None)


@functools.lru_cache(maxsize=4096)
def expression_at(place: Place) -> str:
    """Return the expression at an instruction, such as a call, on one line."""
    code, at = place
    first, last, start, end = next(itertools.islice(code.co_positions(), at // 2, None))
    if first is None or last is None:
        return ""
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
    if lines:
        lines[-1], lines[0] = lines[-1][:end], lines[0] if len(lines) > 1 else lines[0][:end]
        lines[0] = lines[0][start:]
    return safe(" ".join(b"".join(lines).decode().split()))


def line_of(step: Step) -> str:
    """Return the innermost expression that runs a step, or the name of its operation if there is no code."""
    return (expression_at(step.places[0]) if step.places else "") or step.name


def part_of(program: Program, steps: Sequence[Step]) -> str:
    """Describe some steps of a program by the expression that runs them, and their part of it."""
    place = common_place(steps)
    if place is None or not (expression := expression_at(place)):
        return f"`{short(steps[-1])}` in `{line_of(steps[-1])}`"
    first, last = steps[0].number, steps[-1].number
    before = itertools.takewhile(lambda each: place in each.places, reversed(program.steps[:first]))
    inside = [*before, *itertools.takewhile(lambda each: place in each.places, program.steps[first:])]
    is_whole = {each.number for each in computing(inside)} <= {each.number for each in steps}
    if is_whole and (expression.endswith(")") or len(steps) > 1):  # an operator's expression includes operands
        return f"`{expression}`"
    names = f"`{short(steps[0])}`" if first == last else f"`{short(steps[0])}` to `{short(steps[-1])}`"
    return f"{names} in `{expression}`"


def result_of(step: Step, part: int = 0) -> str:
    """Return a description of a step's result."""
    which = f"part {part + 1} of " if len(step.outputs) > 1 and not step.aliases else ""
    return f"{which}the result of `{line_of(step)}`"


def origin(program: Program, index: int) -> str:
    """Return a description of a value."""
    if index in program.names:
        return program.names[index]
    if index not in program.maker:
        return "a constant"
    step = program.steps[program.maker[index]]
    return result_of(step, step.outputs.index(index))


def behind_views(program: Program, index: int, *, in_order: bool = False) -> int:
    """Follow views back to the earliest value that has the same numbers.

    If `in_order` is set, the numbers must also have the same order.
    """
    while index in program.maker and short(made := program.steps[program.maker[index]]) in VIEWS and made.inputs:
        before, after = program.values[made.inputs[0]], program.values[index]
        if in_order and (before.numel() != after.numel() or not before.reshape(-1).equal(after.reshape(-1))):
            break
        index = made.inputs[0]
    return index


def given_of(program: Program, item: Any) -> int:
    """Return the index of the given value that an argument is, or is a view of; -1 for other arguments."""
    index = behind_views(program, item.index) if isinstance(item, Ref) else -1
    return index if index in program.given else -1


def references(step: Step) -> Iterator[tuple[int, Ref]]:
    """Yield the tensors among the arguments of a step, each with its position."""
    for place, item in enumerate(step.args):
        if isinstance(item, Ref):
            yield place, item
