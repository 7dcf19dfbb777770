"""Edits that replace an operand of a step, or the function that the step applies."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import ChainMap
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transparity_conformance.against.edits.edit import (
    VIEWS,
    At,
    Context,
    Edit,
    Function,
    Make,
    behind_views,
    edit_at,
    line_of,
    origin,
    references,
    reordering,
    short,
)
from transparity_conformance.listening.program import Change, Program, Ref, Step, Values, filled
from transparity_conformance.matching.graph import ancestors
from transparity_conformance.oracle.budgets import epsilon

MOST = 24

COPIES = frozenset(["clone", "detach", "alias", "to_copy", "lift_fresh", "copy", "t", "contiguous"])


def passed(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that pass a value which the port passes beside another operand of the step. If this value is no
    result of the port, it may be a constant."""
    program = at.program
    roots = {place: behind_views(program, item.index) for place, item in references(at.step)}
    computed = {place: roots[place] for place, item in references(at.step) if item.index in at.flow.passes}
    for taken in filter(None, context.passed):
        theirs = {behind_views(program, index) for index in taken}
        own = [place for place, root in computed.items() if root not in theirs]
        others = taken if theirs - {*roots.values()} else program.maker.keys() - at.flow.passes.keys()
        shares_operand = len(roots) > 1 and (len(computed) == 1 or len(own) < len(computed))
        for place in own if shares_operand else []:
            operand = program.values[at.step.args[place].index]
            made = [index for index in sorted(others, reverse=True) if index in program.maker]
            alike = (index for index in made if program.values[index].numel() == operand.numel())
            for index in {behind_views(program, index, in_order=True): index for index in alike}.values():
                step = program.steps[program.maker[index]]
                if behind_views(program, index) not in roots.values():
                    yield from _with_operand(at, place, Other(step, output=step.outputs.index(index)))


def operands(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that swap operands, or that pass an earlier value of the same size in place of an operand."""
    program, step = at.program, at.step
    for place, item in references(step) if short(step) not in COPIES else ():
        for other in itertools.islice(_others(program, step, item.index), MOST):
            yield from _with_operand(at, place, other)
    for place, item in enumerate(step.args):
        if isinstance(item, list) and len(item) > 1 and all(isinstance(each, Ref) for each in item):
            says = f"reverses the list of tensors in `{at.line}`"
            yield edit_at((place,), "operands", says, operator.itemgetter(slice(None, None, -1)), 1)
    if len(step.args) > 1 and isinstance(step.args[0], Ref) and isinstance(step.args[1], Ref):
        says = f"swaps the two operands of `{short(step)}` in `{at.line}`"
        exchanged = lambda at: at.with_arguments(lambda args, _: [args[1], args[0], *args[2:]])
        yield Edit("operands", says, exchanged, rank=1)


def _with_operand(at: At, place: int, other: Other) -> Iterator[Edit]:
    program, step = at.program, at.step
    index = step.args[place].index
    theirs, view = behind_views(program, index, in_order=True), reordering(program, index)
    unturned = None if view is None else behind_views(program, view.inputs[0], in_order=True)
    yours = behind_views(program, other.index(), in_order=True)
    make: Make = functools.partial(_taking, place=place, site=step.site, other=other)
    if view is not None and yours == unturned:
        yield Edit("left out", f"leaves out `{line_of(view)}`", make, rank=3, view_of=place)
        return
    names = origin(program, yours), origin(program, theirs)
    if names[0] == names[1]:  # both are views of the same line
        names = origin(program, behind_views(program, yours)), origin(program, behind_views(program, theirs))
    says = f"passes {names[0]} to `{short(step)}`, where the reference passes {names[1]}"
    swap = f"swaps {names[1]} and {names[0]}"
    if names[0] == names[1]:  # both are results of the same line
        says = f"passes another operand to `{short(step)}` in `{at.line}`"
        swap = f"swaps two operands in `{at.line}`"
    wider = _exchanges(program, index, other, swap)
    yield Edit("operand", says, make, rank=3, wider=wider)
    if not at.flow.passes.keys() & {index, other.index()}:
        yield from wider  # a port may use tables in other steps than the reference


@dataclass(frozen=True)
class Other:
    """The position of a value in the code: a step's output or argument."""

    step: Step
    output: int = -1
    argument: int = -1

    def index(self, step: Step | None = None) -> int:
        step = step or self.step
        return int(step.outputs[self.output] if self.argument < 0 else step.args[self.argument].index)

    def is_result(self, program: Program, index: int, is_same_site: bool) -> bool:
        """Return whether a run of the same instruction computes the value `index`; if `is_same_site` is false, a run of
        the same line suffices."""
        made = program.steps[program.maker[index]] if index in program.maker else None
        if made is None or (made.site != self.step.site if is_same_site else made.line != self.step.line):
            return False
        return made.outputs.index(index) == self.output

    def before(self, at: At, is_same_site: bool) -> int | None:
        """Return the value at this position in the previous run of the same instruction or, without `is_same_site`, of
        the same line."""
        program = at.program
        alike = program.places.get(self.step.site, ()) if is_same_site else program.lines.get(self.step.line, ())
        before = [number for number in alike if number < at.step.number]
        return self.index(program.steps[before[-1]]) if before else None


def _exchanges(program: Program, index: int, other: Other, says: str) -> tuple[Edit, ...]:
    """Return an edit that swaps two results of equal shape in all steps that read these results. A simpler edit is
    preferred if one result is computed from the other."""
    maker = program.maker
    if index not in maker or other.output < 0 or program.values[index].shape != program.values[other.index()].shape:
        return ()
    step = program.steps[maker[index]]
    first, last = sorted((step.number, other.step.number))
    before = ancestors([last], lambda each: [number for number in program.makers(each) if number >= first])
    rank = 4 if first < last and first in before else 0
    one = Other(step, output=step.outputs.index(index))
    return (Edit("exchanged", says, functools.partial(_swapping, one=one, other=other), rank, is_everywhere=True),)


def _swapping(at: At, one: Other, other: Other) -> Change | None:
    program, step = at.program, at.step
    is_same_site = one.step.line == other.step.line and one.step is not other.step
    swapped = {
        index: yours.before(at, is_same_site)
        for index in step.inputs
        for mine, yours in ((one, other), (other, one))
        if mine.is_result(program, index, is_same_site)
    }
    if not swapped or step.aliases:
        return None

    def changed(values: Values) -> Any:
        now = ChainMap({index: values[new] for index, new in swapped.items() if new is not None}, values)
        return at.run(filled(step.args, now), filled(step.kwargs, now))

    return changed


def _others(program: Program, step: Step, index: int) -> Iterator[Other]:
    mine, seen = program.values[index], {index, behind_views(program, index, in_order=True)}
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
            root = behind_views(program, place, in_order=True)
            if has_shape and not seen & {place if is_view else root, root}:
                seen.add(place if is_view else root)
                yield each


def _taking(at: At, place: int, site: Hashable, other: Other) -> Change | None:
    index = other.before(at, at.step.site == site)
    if index is None:
        return None
    return lambda values: at.changing((place,), lambda old: values[index].reshape(old.shape))(values)


ALIKE: tuple[tuple[str, ...], ...] = (
    ("add", "sub", "mul", "div"),
    ("sin", "cos"),
    ("exp", "expm1"),
    ("log", "log1p"),
    ("rsqrt", "sqrt", "reciprocal"),
    ("mean", "sum", "amax"),
    ("lt", "le", "gt", "ge", "eq", "ne"),
    ("bitwise_and", "bitwise_or", "logical_and", "logical_or"),
    ("maximum", "minimum"),
    ("floor", "ceil", "round"),
    ("argmax", "argmin"),
)
"""Groups of operations that programmers may confuse."""

INVERSE = {"add": "sub", "mul": "div"}

ACTIVATIONS = frozenset(
    ["silu", "gelu", "relu", "sigmoid", "tanh", "softplus", "elu", "leaky_relu", "hardswish", "exp"]
)


def functions(at: At, context: Context) -> Iterator[Edit]:
    name = short(at.step)
    for group in ALIKE:
        for other in group if name in group and at.step.args and isinstance(at.step.args[0], Ref) else ():
            if other != name:
                says = f"applies `{other}`, where the reference applies `{name}`"
                yield Edit("function", says, functools.partial(_called, other=other), rank=1)
    if name in INVERSE and len(at.step.args) > 1 and all(isinstance(item, Ref) for item in at.step.args[:2]):
        says = f"applies `{INVERSE[name]}` to the swapped operands, where the reference applies `{name}`"
        yield Edit("function", says, functools.partial(_called, other=INVERSE[name], is_turned=True), rank=1)
    for label, function in activations().items() if name in ACTIVATIONS else ():
        form = f" ({at.step.kwargs['approximate']})" if at.step.kwargs.get("approximate") else ""
        says = f"applies {label}, where the reference applies `{name}`{form}"
        made = lambda at, function=function: at.applying(function, at.step.inputs[0])
        yield Edit("function", says, made, rank=1)


def _called(at: At, other: str, is_turned: bool = False) -> Change:
    import torch

    def changed(values: Values) -> Any:
        args = filled(at.step.args, values)
        args = (args[1], args[0], *args[2:]) if is_turned else args
        return at.fitting(getattr(torch, other)(*args, **at.step.kwargs))

    return changed


@functools.cache
def activations() -> dict[str, Function]:
    import torch
    from torch.nn import functional as F

    return {
        "SiLU": F.silu,
        "GELU (erf)": F.gelu,
        "GELU (tanh)": functools.partial(F.gelu, approximate="tanh"),
        "GELU with erf(x) instead of erf(x / √2)": lambda x: x * (1 + torch.erf(x)) / 2,
        "GELU (sigmoid)": lambda x: x * torch.sigmoid(1.702 * x),
        "ReLU": F.relu,
        "squared ReLU": lambda x: F.relu(x) ** 2,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": F.softplus,
        "ELU": F.elu,
        "leaky ReLU": F.leaky_relu,
        "hard swish": F.hardswish,
        "exp": torch.exp,
    }


EPSILONS = (1e-5, 1e-6, 1e-3, 1e-8, 1e-12, epsilon("float32"))
"""Common epsilons of norms. The last epsilon is the default of PyTorch's RMS norm."""


LAYER_NORM = "the standard deviation with the epsilon"


def _divided(x: Any, is_centred: bool, fewer: int, eps: float = 0.0, outside: float = 0.0) -> Any:
    x = x - x.mean(-1, keepdim=True) if is_centred else x
    return x / ((x.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - fewer) + eps).sqrt() + outside)


DIVIDED: dict[str, Callable[..., Any]] = {
    "the root mean square{}": functools.partial(_divided, is_centred=False, fewer=0),
    "the standard deviation{}, after the mean is subtracted": functools.partial(_divided, is_centred=True, fewer=0),
    "the standard deviation (n - 1){}, after the mean is subtracted": functools.partial(
        _divided, is_centred=True, fewer=1
    ),
}

NORMALIZED: dict[str, Function] = {
    "the sum": lambda x: x / x.sum(-1, keepdim=True),
    "the length": lambda x: x / x.norm(dim=-1, keepdim=True),
    "the sum, after exponentiation (softmax)": lambda x: x.softmax(-1),
}


def norms(numbers: Sequence[float]) -> dict[str, Function]:
    found: dict[str, Function] = {says.format(""): each for says, each in DIVIDED.items()} | NORMALIZED
    for eps in dict.fromkeys([*EPSILONS, *(number for number in numbers if 0 < number <= 1e-3)]):
        for says, function in DIVIDED.items():
            found[says.format(f" with the epsilon {eps:g}")] = functools.partial(function, eps=eps)
            found[says.format(f" plus {eps:g}")] = functools.partial(function, outside=eps)
    return found
