"""An edit: a change of one step of a recorded computation (a program), or of a few consecutive steps."""

from __future__ import annotations

import functools
import itertools
import linecache
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.text import safe
from transparity_conformance.against.flow import DataFlow, as_shaped
from transparity_conformance.listening.program import Change, Place, Program, Ref, Step, Values, executed, filled
from transparity_conformance.matching.values import fingerprint

VIEWS = frozenset(
    ["view", "unsafe_view", "transpose", "t", "permute", "expand", "clone", "unsqueeze", "squeeze", "detach", "alias"]
) | {"reshape", "to_copy", "lift_fresh", "as_strided", "unbind", "reshape_alias", "contiguous", "copy"}
"""Operations that only rearrange, copy or convert their input, called views."""


Function = Callable[[Any], Any]

Path = tuple[Any, ...]
"""The location of an argument: a position or keyword, followed by positions in nested lists. The empty path is the
location of the result."""


@dataclass(frozen=True)
class At:
    """A step of a program that an edit may change."""

    program: Program
    flow: DataFlow
    step: Step

    @property
    def value(self) -> Any:
        return self.program.values.get(self.step.output)

    @property
    def line(self) -> str:
        return line_of(self.step)

    def behind(self, *counts: int) -> list[int] | None:
        """Return the starts of consecutive segments, the last segment first. For a count n, a segment starts at the nth
        dominator of the segment's end."""
        found, end = [], self.step.output
        for count in counts:
            start = next(itertools.islice(starts(self.flow, end), count - 1, None), None)
            if start is None:
                return None
            found.append(start)
            end = start
        return found

    def run(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run the operation on copies, because it may write into its inputs, as a batch norm does in training."""
        copies = [each.clone() if hasattr(each, "clone") else each for each in args]
        return executed(self.step.func, copies, kwargs, None)

    def with_arguments(self, change: Callable[[list[Any], Values], list[Any]]) -> Change:
        step = self.step
        return lambda values: self.run(change([*filled(step.args, values)], values), filled(step.kwargs, values))

    def changing(self, path: Path, change: Function) -> Change:
        """Return a change that applies the function `change` to the argument at `path`, or to the result."""
        if not path:
            return lambda values: self.fitting(change(self.step.result(values)))

        def changed(values: Values) -> Any:
            args, kwargs = filled(self.step.args, values), filled(self.step.kwargs, values)
            if isinstance(path[0], str):
                return self.run(args, {**kwargs, path[0]: _replaced(kwargs[path[0]], path[1:], change)})
            return self.run(_replaced(args, path, change), kwargs)

        return changed

    def applying(self, function: Function, index: int) -> Change:
        """Return a change whose result is `function` of the value `index`."""
        return lambda values: self.fitting(function(values[index]))

    def fitting(self, made: Any) -> Any:
        """Return `made` in the shape of the step's result. Raise `ValueError` if the shape does not fit, or if only one
        of the two tensors is floating-point."""
        made = as_shaped(made, self.value)
        if made.shape != self.value.shape or made.is_floating_point() != self.value.is_floating_point():
            raise ValueError("the edit changes the shape or the type of the step's result")
        return made


def _replaced(item: Any, path: Path, change: Function) -> Any:
    if not path:
        return change(item)
    return type(item)(_replaced(x, path[1:], change) if place == path[0] else x for place, x in enumerate(item))


Make = Callable[[At], Change | None]


@dataclass(frozen=True)
class Edit:
    """A change of all steps that a line of code runs."""

    kind: str
    words: str | Callable[[], str] = field(repr=False)
    """The description in reports, after the words "your port", or a function that returns the description."""
    make: Make = field(repr=False)
    """A function that returns the change at a step, or None if the edit does not apply to this step."""
    rank: int = 0
    """Reports prefer the edit with the lowest rank."""
    behind: tuple[int, ...] = ()
    """The arguments of `At.behind` that select the edited segments; empty for a single step."""
    is_everywhere: bool = False
    """Whether the edit changes all steps to which it applies, and not only steps of one line."""
    wider: tuple[Edit, ...] = ()
    """Edits that have the same result at this step, and that also change other steps."""
    view_of: int = -1
    """The number of the operand whose reordering view the edit removes; -1 for other edits."""
    operation: int = -1
    """The port's operation whose value the edit inserts or reproduces; otherwise -1."""

    @functools.cached_property
    def says(self) -> str:
        return self.words if isinstance(self.words, str) else self.words()

    def steps(self, at: At) -> list[Step]:
        if self.view_of >= 0 and (view := reordering(at.program, at.step.args[self.view_of].index)) is not None:
            return [view]
        found = at.behind(*self.behind)
        if not self.behind or found is None:
            return [at.step]
        ends = [at.step.output, *found]
        return computing(at.flow.between(ends[-1], ends[-2])) or [at.step]

    def all_steps(self, at: At) -> Sequence[Step]:
        found = at.behind(*self.behind)
        return at.flow.between(found[-1], at.step.output) if found else [at.step]


def edit_at(path: Path, kind: str, says: str | Callable[[], str], change: Function, rank: int) -> Edit:
    return Edit(kind, says, lambda at: at.changing(path, change), rank)


@dataclass(frozen=True)
class Context:
    """Values that edits may use: numbers to insert, and values of the port to reproduce."""

    numbers: Sequence[float] = ()
    """The numbers in the reference's configuration."""
    wanted: Sequence[np.ndarray] = ()
    """The port's first unmatched values, each as its sorted elements."""
    lost: Mapping[int, np.ndarray] = field(default_factory=dict)
    """All unmatched values of the port, by operation."""
    values: Values = field(default_factory=dict)
    """The values of the reference, changed by the edits found so far."""
    passed: Sequence[Collection[int]] = ()
    """For each of the port's first unmatched operations, the reference's values that equal the operation's inputs."""

    @functools.cached_property
    def prints(self) -> list[np.ndarray]:
        return [found for each in self.lost.values() if (found := fingerprint(each)) is not None]


def short(step: Step) -> str:
    return _short(step.func)


@functools.cache
def _short(func: Any) -> str:
    return str(func).split(".")[1].strip("_")


def computing(steps: Sequence[Step]) -> list[Step]:
    return [each for each in steps if short(each) not in VIEWS]


def starts(flow: DataFlow, end: int) -> Iterator[int]:
    """Yield a value's dominators, nearest first. If only views lie between two dominators, skip the farther
    dominator."""
    maker, steps, is_after = flow.program.maker, flow.program.steps, False
    for start in flow.behind(end):
        is_after = is_after or end not in maker or short(steps[maker[end]]) not in VIEWS
        if is_after:
            yield start
            is_after = False
        end = start


def common_place(steps: Sequence[Step]) -> Place | None:
    first, *others = steps
    return next((place for place in first.places if all(place in each.places for each in others)), None)


@functools.lru_cache(maxsize=4096)
def expression_at(place: Place) -> str:
    """Return the source of the expression that an instruction runs, on one line."""
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
    return (expression_at(step.places[0]) if step.places else "") or step.name


def part_of(program: Program, steps: Sequence[Step]) -> str:
    """Describe steps by their source expression, and by their names if the expression also runs other steps."""
    place = common_place(steps)
    if place is None or not (expression := expression_at(place)):
        return f"`{short(steps[-1])}` in `{line_of(steps[-1])}`"
    first, last = steps[0].number, steps[-1].number
    before = itertools.takewhile(lambda each: place in each.places, reversed(program.steps[:first]))
    inside = [*before, *itertools.takewhile(lambda each: place in each.places, program.steps[first:])]
    is_whole = {each.number for each in computing(inside)} <= {each.number for each in steps}
    if is_whole and (expression.endswith(")") or len(steps) > 1):  # `a + b` also contains operands
        return f"`{expression}`"
    names = f"`{short(steps[0])}`" if first == last else f"`{short(steps[0])}` to `{short(steps[-1])}`"
    return f"{names} in `{expression}`"


def result_of(step: Step, part: int = 0) -> str:
    which = f"part {part + 1} of " if len(step.outputs) > 1 and not step.aliases else ""
    return f"{which}the result of `{line_of(step)}`"


def origin(program: Program, index: int) -> str:
    if index in program.names:
        return program.names[index]
    if index not in program.maker:
        return "a constant"
    step = program.steps[program.maker[index]]
    return result_of(step, step.outputs.index(index))


def behind_views(program: Program, index: int, *, in_order: bool = False) -> int:
    """Return the first value before `index` that is no view; with `in_order`, stop at a view that reorders elements."""
    while index in program.maker and short(made := program.steps[program.maker[index]]) in VIEWS and made.inputs:
        before, after = program.values[made.inputs[0]], program.values[index]
        if in_order and (before.numel() != after.numel() or not before.reshape(-1).equal(after.reshape(-1))):
            break
        index = made.inputs[0]
    return index


def reordering(program: Program, index: int) -> Step | None:
    """Return the nearest view before the value `index` that changes the order of elements, or None."""
    index = behind_views(program, index, in_order=True)
    made = program.steps[program.maker[index]] if index in program.maker else None
    return made if made is not None and made.inputs and short(made) in VIEWS else None


def given_of(program: Program, item: Any) -> int:
    """If an argument is a view of a parameter, an input or a constant, return the index of this tensor; otherwise
    -1."""
    index = behind_views(program, item.index) if isinstance(item, Ref) else -1
    return index if index in program.given else -1


def references(step: Step) -> Iterator[tuple[int, Ref]]:
    for place, item in enumerate(step.args):
        if isinstance(item, Ref):
            yield place, item
