"""Edits that replace an operand of a step."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from transparity_conformance.against.edits.edit import VIEWS, At, Context, Edit, origin, references, short
from transparity_conformance.listening.program import Change, Program, Ref, Step, Values, executed, filled

MOST = 24
"""At most this number of other values is tried, the nearest first, to limit the time."""

COPIES = frozenset(["clone", "detach", "alias", "to_copy", "lift_fresh", "copy", "t", "contiguous"])


def operands(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that use another value of the same size, computed or read earlier."""
    program, step = at.program, at.step
    for place, item in references(step) if short(step) not in COPIES else ():
        theirs = origin(program, _root(program, item.index))
        for other in itertools.islice(_others(program, step, item.index), MOST):
            yours = origin(program, _root(program, other.index()))
            says = f"passes {yours} to `{short(step)}`, where theirs passes {theirs}"
            yield Edit("operand", says, functools.partial(_taking, place=place, site=step.site, other=other), rank=3)
    for place, item in enumerate(step.args):
        if isinstance(item, list) and len(item) > 1 and all(isinstance(each, Ref) for each in item):
            says = f"has the parts in reverse order in `{at.line}`"
            yield Edit("operands", says, functools.partial(_reversed, place=place), rank=1)
    if len(step.args) > 1 and isinstance(step.args[0], Ref) and isinstance(step.args[1], Ref):
        says = f"swaps the two operands of `{short(step)}` in `{at.line}`"
        yield Edit("operands", says, _exchanged, rank=1)


@dataclass(frozen=True)
class Other:
    """A value that a step returns or receives."""

    step: Step
    output: int = -1
    argument: int = -1

    def index(self, step: Step | None = None) -> int:
        """Return the value's index, at the step itself or at a corresponding step."""
        step = step or self.step
        return int(step.outputs[self.output] if self.argument < 0 else step.args[self.argument].index)

    def before(self, at: At, is_same_site: bool) -> int | None:
        """Return the index of the last such value before `at`.

        The value comes from the same place in the code or, unless `is_same_site`, from the same line.
        """
        program = at.program
        alike = program.places.get(self.step.site, ()) if is_same_site else program.lines.get(self.step.line, ())
        before = [number for number in alike if number < at.step.number]
        return self.index(program.steps[before[-1]]) if before else None


def _others(program: Program, step: Step, index: int) -> Iterator[Other]:
    """Yield the values that may replace an operand, the nearest first, back to the previous run of the step."""
    mine, seen = program.values[index], {index, _root(program, index)}
    last = max((number for number in program.places[step.site] if number < step.number), default=-1)
    for number in range(step.number - 1, last, -1):
        other = program.steps[number]
        found = [(place, Other(other, output=k)) for k, place in enumerate(other.outputs)]
        found += [(item.index, Other(other, argument=k)) for k, item in references(other)]
        for place, each in found:
            value, is_view = program.values[place], short(other) in VIEWS
            if place not in program.maker or value.numel() != mine.numel() or value.dtype != mine.dtype:
                continue
            has_shape = value.shape == mine.shape or (value.shape[-1:] == mine.shape[-1:] and not is_view)
            root = place if is_view else _root(program, place)
            if has_shape and not seen & {root, _root(program, place)}:
                seen.add(root)
                yield each


def _root(program: Program, index: int) -> int:
    """Follow views back to the earliest value that has the same numbers in the same order."""
    while index in program.maker and short(made := program.steps[program.maker[index]]) in VIEWS and made.inputs:
        before, after = program.values[made.inputs[0]], program.values[index]
        if before.numel() != after.numel() or not before.reshape(-1).equal(after.reshape(-1)):
            break
        index = made.inputs[0]
    return index


def _taking(at: At, place: int, site: Hashable, other: Other) -> Change | None:
    index = other.before(at, at.step.site == site)
    if index is None:
        return None
    shape = at.program.values[at.step.args[place].index].shape

    def changed(values: Values) -> Any:
        args = list(filled(at.step.args, values))
        args[place] = values[index].reshape(shape)
        return executed(at.step.func, args, at.step.kwargs, None)

    return changed


def _reversed(at: At, place: int) -> Change:
    return at.with_argument(place, lambda parts: parts[::-1])


def _exchanged(at: At) -> Change:
    def changed(values: Values) -> Any:
        first, second, *rest = filled(at.step.args, values)
        return executed(at.step.func, (second, first, *rest), at.step.kwargs, None)

    return changed
