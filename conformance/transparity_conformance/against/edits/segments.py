"""Edits that leave out, repeat, swap or replace segments: the steps between a value and one of its dominators."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Hashable, Iterator
from typing import Any

from transparity_conformance.against.edits.edit import (
    VIEWS,
    At,
    Context,
    Edit,
    Function,
    Make,
    computing,
    origin,
    part_of,
    references,
    short,
    starts,
)
from transparity_conformance.against.edits.operands import activations, norms
from transparity_conformance.against.flow import as_shaped
from transparity_conformance.listening.program import Change, Program, Ref, Step, Values

LONGEST = 4
"""A segment starts at one of the `LONGEST` nearest dominators of the segment's end."""

OPPOSITE = "computes {} before {}; the reference does the opposite"


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
        yield from _exchanges(at, count)


def exchanges(at: At, context: Context) -> Iterator[Edit]:
    if at.step.output in at.flow.passes and short(at.step) not in VIEWS:
        yield from itertools.chain.from_iterable(_exchanges(at, count) for count in range(1, LONGEST + 1))


def _exchanges(at: At, count: int) -> Iterator[Edit]:
    for first in range(LONGEST, 0, -1):
        counts = (count, first)
        says = functools.partial(_exchange_in_words, at, *counts)
        yield Edit("exchanged", says, functools.partial(_in_turn, counts=counts), 3, counts)


def _of_one(at: At, count: int, start: int, context: Context) -> Iterator[Edit]:
    def edit(kind: str, form: str, make: Make, rank: int = 2) -> Edit:
        return Edit(kind, lambda: form.format(_in_words(at, start, at.step)), make, rank, (count,))

    def applying(function: Function) -> Make:
        return lambda at: at.applying(function, found[0]) if (found := at.behind(count)) else None

    yield edit("left out", "leaves out {}", applying(lambda x: x), 1)
    yield edit("twice", "applies {} twice", functools.partial(_in_turn, counts=(count,)))
    steps = at.flow.between(start, at.step.output)
    if any(index in at.program.parameters for each in steps for index in each.inputs):
        return
    for label, function in activations().items():
        yield edit("function", f"applies {label} in place of {{}}", applying(function))
    for label, function in norms(context.numbers).items():
        yield edit("normalization", f"divides by {label}, where the reference has {{}}", applying(function))


def _in_turn(at: At, counts: tuple[int, ...]) -> Change | None:
    found = at.behind(*counts)
    if found is None:
        return None
    ends = [at.step.output, *found]

    def changed(values: Values) -> Any:
        made = values[ends[-1]]
        for start, end in ((ends[1], ends[0]), (ends[-1], ends[-2])):
            made = at.flow.through(start, end, made, values)
        return at.fitting(made)

    return changed


def _in_words(at: At, start: int, end: Step) -> str:
    return part_of(at.program, computing(at.flow.between(start, end.output)) or [end])


def _exchange_in_words(at: At, last: int, first: int) -> str:
    found = at.behind(last, first)
    if found is None or found[0] not in at.program.maker:
        return ""
    makes = at.program.steps[at.program.maker[found[0]]]
    return OPPOSITE.format(_in_words(at, found[0], at.step), _in_words(at, found[1], makes))


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
            says = lambda start=start, makes=makes: OPPOSITE.format(
                part_of(at.program, [at.step]), _in_words(at, start, makes)
            )
            yield Edit("exchanged", says, functools.partial(_step_before, place=place, count=count), 2)


def _step_before(at: At, place: int, count: int) -> Change | None:
    operand = at.step.args[place]
    begins = dict(zip(range(count + 1), starts(at.flow, operand.index), strict=False))
    if not isinstance(operand, Ref) or count not in begins:
        return None
    start, middle = begins[count], operand.index

    def changed(values: Values) -> Any:
        once = at.changing((place,), lambda old: as_shaped(values[start], old))(values)
        return at.fitting(at.flow.through(start, middle, once, values))

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


def writes(at: At, context: Context) -> Iterator[Edit]:
    if at.step.aliases:
        unwritten = lambda at: lambda values: values[at.step.written]
        yield Edit("left out", f"does not write to `{at.line}`", unwritten, rank=1)


def _once_more(at: At, place: int) -> Change:
    operand = at.step.args[place].index
    return lambda values: at.fitting(at.run([at.step.result(values), values[operand]], {}))


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
    ends = [at.program.steps[number].output for number in at.program.lines.get(end, ())]
    pairs = ((start, last) for start in _continued_otherwise(at) for last in ends if start in at.flow.behind(last))
    if (pair := next(pairs, None)) is None:
        return None
    return lambda values: at.fitting(at.flow.through(*pair, at.step.result(values), values))
