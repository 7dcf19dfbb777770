"""Edits that leave out, repeat, swap or replace segments: the steps between a value and one of its dominators."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from transparity_conformance.against.edits.edit import (
    VIEWS,
    At,
    Context,
    Edit,
    Function,
    Make,
    as_shaped,
    computing,
    origin,
    part_of,
    references,
    short,
    starts,
)
from transparity_conformance.against.edits.operands import activations, norms
from transparity_conformance.listening.program import Change, Program, Ref, Step, Values, executed, filled

LONGEST = 4
"""A segment starts at one of the `LONGEST` nearest dominators of the segment's end."""


def segments(at: At, context: Context) -> Iterator[Edit]:
    if at.step.output not in at.flow.passes:
        return
    for count in range(1, LONGEST + 1):
        found = at.behind(count)
        if found is None:
            break
        start = at.program.values[found[0]]
        if short(at.step) in VIEWS and start.shape != at.value.shape:
            continue
        if start.numel() == at.value.numel():
            yield from _of_one(at, count, found[0], context)
        for first in range(LONGEST, 0, -1):
            counts = (count, first)
            says = functools.partial(_exchange_in_words, at, *counts)
            yield Edit("exchanged", says, functools.partial(_in_turn, counts=counts), 3, counts)


def _of_one(at: At, count: int, start: int, context: Context) -> Iterator[Edit]:
    def says(form: str) -> Callable[[], str]:
        return lambda: form.format(_in_words(at, start, at.step))

    make: Make = functools.partial(_applied, count=count, function=lambda x: x)
    yield Edit("left out", says("leaves out {}"), make, 1, (count,))
    yield Edit("twice", says("applies {} twice"), functools.partial(_in_turn, counts=(count,)), 2, (count,))
    steps = at.flow.between(start, at.step.output)
    if any(index in at.program.parameters for each in steps for index in each.inputs):
        return
    for label, function in activations().items():
        make = functools.partial(_applied, count=count, function=function)
        yield Edit("function", says(f"applies {label} in place of {{}}"), make, 2, (count,))
    for label, function in norms(context.numbers).items():
        make = functools.partial(_applied, count=count, function=function)
        yield Edit("normalization", says(f"divides by {label}, where the reference has {{}}"), make, 2, (count,))


def _applied(at: At, count: int, function: Function) -> Change | None:
    found = at.behind(count)
    return None if found is None else lambda values: at.fitting(function(values[found[0]]))


def _in_turn(at: At, counts: tuple[int, ...]) -> Change | None:
    found = at.behind(*counts)
    if found is None:
        return None
    ends = [at.step.output, *found]

    def changed(values: Values) -> Any:
        made = values[ends[-1]]
        for start, end in ((ends[1], ends[0]), (ends[-1], ends[-2])):
            made = at.flow.through(start, end, as_shaped(made, values[start]), values)
        return at.fitting(made)

    return changed


def _in_words(at: At, start: int, end: Step) -> str:
    return part_of(at.program, computing(at.flow.between(start, end.output)) or [end])


def _exchange_in_words(at: At, last: int, first: int) -> str:
    found = at.behind(last, first)
    if found is None or found[0] not in at.program.maker:
        return ""
    makes = at.program.steps[at.program.maker[found[0]]]
    return _other_way_round(_in_words(at, found[0], at.step), _in_words(at, found[1], makes))


def _other_way_round(later: str, earlier: str) -> str:
    return f"computes {later} before {earlier}; the reference does the opposite"


def steps_before(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that move a step before the segment that computes the step's operand. For example, the residual is
    added before a norm, not after it."""
    step = at.step
    if short(step) in VIEWS or len([index for index in step.inputs if index in at.flow.passes]) < 2:
        return
    for place, item in references(step):
        if item.index not in at.flow.passes or item.index not in at.program.maker:
            continue
        makes = at.program.steps[at.program.maker[item.index]]
        begins = list(zip(range(LONGEST), starts(at.flow, item.index), strict=False))
        for count, start in reversed(begins):

            def says(start: int = start, makes: Step = makes) -> str:
                return _other_way_round(part_of(at.program, [at.step]), _in_words(at, start, makes))

            yield Edit("exchanged", says, functools.partial(_step_before, place=place, count=count), 2)


def _step_before(at: At, place: int, count: int) -> Change | None:
    operand = at.step.args[place]
    begins = dict(zip(range(count + 1), starts(at.flow, operand.index), strict=False))
    if not isinstance(operand, Ref) or count not in begins:
        return None
    start, middle = begins[count], operand.index

    def changed(values: Values) -> Any:
        args = list(filled(at.step.args, values))
        args[place] = as_shaped(values[start], values[middle])
        once = executed(at.step.func, args, at.step.kwargs, None)
        return at.fitting(at.flow.through(start, middle, as_shaped(once, values[start]), values))

    return changed


def operands_alone(at: At, context: Context) -> Iterator[Edit]:
    for place, item in references(at.step) if short(at.step) in ("add", "sub", "mul", "div") else ():
        if place < 2 and at.program.values[item.index].shape == at.value.shape:
            other = at.step.args[1 - place]
            what = origin(at.program, other.index) if isinstance(other, Ref) else f"the number {other}"
            says = f"leaves out {what}, which the reference uses in `{at.line}`"
            passing = lambda at, place=place: lambda values: values[at.step.args[place].index]
            yield Edit("left out", says, passing, rank=1)
        if place < 2 and isinstance(at.step.args[1], Ref) and short(at.step) in ("add", "mul"):
            verb = "adds" if short(at.step) == "add" else "multiplies by"
            says = f"{verb} {origin(at.program, item.index)} once more in `{at.line}`"
            yield Edit("twice", says, functools.partial(_once_more, place=place), rank=1)


def _once_more(at: At, place: int) -> Change:
    def changed(values: Values) -> Any:
        return at.fitting(executed(at.step.func, [at.step.result(values), values[at.step.args[place].index]], {}, None))

    return changed


def elsewhere(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that apply a further segment to this step's result, because another layer of the reference applies
    the segment."""
    program, seen = at.program, set[Hashable]()
    if at.step.output not in at.flow.passes:
        return
    for start in _continued_otherwise(at):
        first = program.maker[start]
        for last in program.steps[first + 1 : first + 32]:  # longer segments are rarely added
            is_new = last.site not in seen and short(last) not in VIEWS
            if is_new and start in itertools.islice(starts(at.flow, last.output), LONGEST):
                seen.add(last.site)
                if program.values[last.output].numel() == at.value.numel():
                    what = functools.partial(_in_words, at, start, last)
                    says = lambda what=what: f"also applies {what()}, which the reference applies only in other layers"
                    yield Edit("added", says, functools.partial(_as_elsewhere, end=last.line), rank=2)


def _continued_otherwise(at: At) -> Iterator[int]:
    program, seen = at.program, [_uses(at.program, at.step)]
    for number in program.places[at.step.site]:
        if (uses := _uses(program, program.steps[number])) not in seen:
            seen.append(uses)
            yield program.steps[number].output


def _uses(program: Program, step: Step) -> set[Hashable]:
    return {program.steps[number].site for number in program.readers_of(step.number)}


def _as_elsewhere(at: At, end: Hashable) -> Change | None:
    program, flow = at.program, at.flow
    ends = [program.steps[number].output for number in program.lines.get(end, ())]
    pairs = ((start, last) for start in _continued_otherwise(at) for last in ends if start in flow.behind(last))
    start, last = next(pairs, (None, -1))
    if start is None:
        return None

    def changed(values: Values) -> Any:
        return at.fitting(flow.through(start, last, as_shaped(at.step.result(values), program.values[start]), values))

    return changed
