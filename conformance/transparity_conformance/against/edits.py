"""Edits of a program: one step, or a few neighbouring ones, computed in another way.

No edit knows a family of models. Each is tried at every step near the place where two programs part.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.against.flow import DataFlow
from transparity_conformance.listening import operation
from transparity_conformance.listening.program import Change, Program, Ref, Step, Values, executed, filled
from transparity_conformance.oracle.budgets import RULES, epsilon

VIEWS = frozenset(
    ["view", "_unsafe_view", "transpose", "t", "permute", "expand", "clone", "unsqueeze", "squeeze", "detach", "alias"]
) | {"reshape", "_to_copy", "lift_fresh", "as_strided", "unbind", "_reshape_alias", "contiguous", "copy"}
"""Operations that return the numbers that they are given, by name without namespace and overload."""

KNOWN_NUMBERS = (0.0, 1.0, -1.0, 2.0, 0.5, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 1e-15, 1e4, 1e5, 5e5, 1e6, 1e3)


def short(step: Step) -> str:
    """Return the name of a step's operation, such as `softmax`."""
    return step.name.split(".")[1].strip("_")


@dataclass(frozen=True)
class Edit:
    """A change of the step at one site.

    Attributes:
        says: what the changed program does, in words; the subject is the port.
    """

    kind: str
    says: str
    make: Callable[[Program, DataFlow, Step], Change | None] = dataclasses.field(repr=False)
    """Returns the change for a step of the site; None where it does not apply."""
    rank: int = 0
    """Simple edits first, among those that explain equally well."""
    behind: tuple[int, ...] = ()
    """How many values back its segments begin; none for one step."""

    def steps(self, flow: DataFlow, step: Step) -> list[Step]:
        """Return the steps that it computes in another way; the earlier ones for two segments in the other order."""
        start, end = step.output, step.output
        for count in self.behind:
            start, end = _behind(flow, start, count), start
            if start is None:
                return [step]
        return [each for each in flow.between(start, end) if short(each) not in VIEWS] or [step]


@dataclass
class Context:
    """What edits may be fitted to."""

    numbers: Sequence[float] = ()
    """Numbers of the configuration."""
    wanted: Sequence[Any] = ()
    """Fingerprints of the port's values at which the programs part."""


def _line(step: Step) -> str:
    return step.stack[0].code if step.stack else step.name


# numbers ------------------------------------------------------------------------------------------------------------


def _arguments(step: Step) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The numbers among the arguments, with their paths."""

    def inside(path: tuple[Any, ...], item: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
        if isinstance(item, bool | int | float):
            yield path, item
        elif isinstance(item, list | tuple):
            for place, each in enumerate(item):
                yield from inside((*path, place), each)

    yield from inside((), list(step.args))
    for name, item in step.kwargs.items():
        if isinstance(item, bool | int | float):
            yield (name,), item


def _with(args: Any, path: tuple[Any, ...], value: Any) -> Any:
    """The arguments with another one at a path."""
    if not path:
        return value
    return type(args)(_with(item, path[1:], value) if place == path[0] else item for place, item in enumerate(args))


def _rerun(step: Step, path: tuple[Any, ...], value: Any) -> Change:
    def change(values: Values) -> Any:
        args, kwargs = step.args, dict(step.kwargs)
        if isinstance(path[0], str):
            kwargs[path[0]] = value
        else:
            args = _with(args, path, value)
        tensors = list(filled(args, values))
        if step.aliases:  # in place: on a copy
            tensors[0] = tensors[0].clone()
        return executed(step.func, tensors, filled(kwargs, values), None)

    return change


def number_edit(step: Step, path: tuple[Any, ...], value: Any, old: Any, rank: int = 0) -> Edit:
    """Return the edit that uses another number."""
    meaning = _number_in_words(value)
    what = f"uses {meaning} for {_number_in_words(old)} in `{short(step)}` of `{_line(step)}`"
    return Edit("number", what, lambda program, flow, at: _rerun(at, path, value), rank)


def _number_in_words(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


SIZES = frozenset(["view", "_unsafe_view", "expand", "reshape", "as_strided", "new_zeros", "zeros", "ones", "full"])


def numbers(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that use another number."""
    if short(step) in SIZES:
        yield from _other_sizes(step)
        return
    for path, old in _arguments(step):
        if isinstance(old, bool):
            others: list[Any] = [not old]
        elif isinstance(old, int):
            others = [old - 1, old + 1, -1, -2, 0, 1, 2]
        else:
            others = [*_related(old, program, step), *KNOWN_NUMBERS, *context.numbers]
        for value in dict.fromkeys(each for each in others if each != old):
            yield number_edit(step, path, type(old)(value) if isinstance(old, float) else value, old)


def _other_sizes(step: Step) -> Iterator[Edit]:
    """Two neighbouring sizes exchanged."""
    for place, sizes in enumerate(step.args):
        if not isinstance(sizes, list | tuple) or not all(isinstance(size, int) for size in sizes):
            continue
        for at in range(len(sizes) - 1):
            other = [*sizes[:at], sizes[at + 1], sizes[at], *sizes[at + 2 :]]
            if other != list(sizes):
                says = f"has the shape {tuple(other)} for {tuple(sizes)} in `{_line(step)}`"
                yield Edit("shape", says, lambda program, flow, at, p=place, o=other: _reshaped(at, p, o), rank=2)


def _reshaped(step: Step, place: int, sizes: Sequence[int]) -> Change | None:
    theirs = step.args[place]
    if sorted(theirs) != sorted(sizes):
        return None
    args = tuple(list(sizes) if index == place else item for index, item in enumerate(step.args))
    return lambda values: executed(step.func, filled(args, values), step.kwargs, None)


def _related(old: float, program: Program, step: Step) -> Iterator[float]:
    """Numbers that a person may have meant instead of another: those made of it, and those made of sizes."""
    yield from (-old, 2 * old, old / 2, old * old)
    if old > 0:
        yield from (math.sqrt(old), 1 / old)
    sizes = {size for index in step.inputs for size in getattr(program.values[index], "shape", ()) if size > 1}
    for size in sorted(sizes):
        yield from (size**-0.5, 1 / size, size**0.5, float(size))


# functions ----------------------------------------------------------------------------------------------------------


def _functions() -> list[dict[str, Callable[..., Any]]]:
    import torch
    from torch.nn import functional as F

    activations: dict[str, Callable[..., Any]] = {
        "SiLU": F.silu,
        "GELU": F.gelu,
        "GELU by tanh": lambda x: F.gelu(x, approximate="tanh"),
        "ReLU": F.relu,
        "squared ReLU": lambda x: F.relu(x) ** 2,
        "sigmoid": torch.sigmoid,
        "tanh": torch.tanh,
        "softplus": F.softplus,
        "ELU": F.elu,
        "leaky ReLU": F.leaky_relu,
        "GELU by sigmoid": lambda x: x * torch.sigmoid(1.702 * x),
        "hard swish": F.hardswish,
        "exp": torch.exp,
    }
    normal: dict[str, Callable[..., Any]] = {
        "no normalization": lambda x: x,
        "the root mean square": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)),
        "the standard deviation, after the mean is subtracted": lambda x: (
            (x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, correction=0))
        ),
        "the sum": lambda x: x / x.sum(-1, keepdim=True),
        "the length": lambda x: x / x.norm(dim=-1, keepdim=True),
        "softmax": lambda x: x.softmax(-1),
    }
    return [activations, normal]


def _norms(context: Context) -> dict[str, Callable[..., Any]]:
    """Norms with PyTorch's default epsilon, and with those of the configuration."""
    import torch

    def rms(x: Any, eps: float) -> Any:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)

    found: dict[str, Callable[..., Any]] = {}
    for eps in dict.fromkeys([1e-5, *(number for number in context.numbers if 0 < number <= 1e-3)]):
        found[f"the root mean square with the epsilon {eps:g}"] = lambda x, e=eps: rms(x, e)
        found[f"the standard deviation with the epsilon {eps:g}, after the mean is subtracted"] = lambda x, e=eps: rms(
            x - x.mean(-1, keepdim=True), e
        )
    return found


PAIRS: tuple[tuple[str, ...], ...] = (
    ("add", "sub", "mul", "div"),
    ("sin", "cos"),
    ("rsqrt", "sqrt", "reciprocal"),
    ("mean", "sum", "amax"),
    ("lt", "le", "gt", "ge", "eq", "ne"),
    ("bitwise_and", "bitwise_or", "logical_and", "logical_or"),
    ("maximum", "minimum"),
    ("floor", "ceil", "round"),
    ("argmax", "argmin"),
)
"""Operations with equal arguments that may be taken for one another."""

ACTIVATIONS = frozenset(
    ["silu", "gelu", "relu", "sigmoid", "tanh", "softplus", "elu", "leaky_relu", "hardswish", "exp"]
)


def functions(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that apply another function."""
    import torch

    name = short(step)
    for place, item in enumerate(step.args[:2] if name in PAIRS[0] else ()):
        if isinstance(item, Ref) and program.values[item.index].shape == program.values[step.output].shape:
            other = step.args[1 - place]
            what = _origin(program, other.index) if isinstance(other, Ref) else f"the number {other}"
            says = f"leaves out {what}, which theirs uses in `{_line(step)}`"
            yield Edit("left out", says, lambda program, flow, at, p=place: _passing(at, p), rank=1)
    for group in PAIRS:
        for other in group if name in group else ():
            if other != name and len(step.args) and isinstance(step.args[0], Ref):
                says = f"applies `{other}`, where theirs applies `{name}`"
                yield Edit("function", says, _calling(getattr(torch, other)), rank=1)
    if name in ACTIVATIONS:
        for label, function in _functions()[0].items():
            says = f"applies {label}, where theirs applies `{name}`"
            yield Edit(
                "function",
                says,
                _on_segment(1, function) if flow.passes.get(step.output) in step.inputs else _on_first(function),
                rank=1,
            )


def _passing(step: Step, place: int) -> Change:
    """The operand as the result."""
    return lambda values: values[step.args[place].index]


def _calling(function: Callable[..., Any]) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change:
        def change(values: Values) -> Any:
            args = [filled(item, values) for item in at.args]
            return _of_shape(function(*args, **at.kwargs), values, at, program)

        return change

    return make


def _of_shape(made: Any, values: Values, at: Step, program: Program) -> Any:
    """The tensor, if it has the shape and kind of what it stands for."""
    meant = program.values[at.output]
    if made.shape != meant.shape or made.is_floating_point() != meant.is_floating_point():
        raise ValueError("another shape or dtype than the step makes")
    return made


def _on_first(function: Callable[..., Any]) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change:
        return lambda values: _of_shape(function(values[at.inputs[0]]), values, at, program)

    return make


# segments -----------------------------------------------------------------------------------------------------------


def _starts(flow: DataFlow, value: int) -> Iterator[int]:
    """The values through which all of the input passes on its way to another, before a step that computes."""
    maker, steps, is_after = flow.program.maker, flow.program.steps, False
    end = value
    for start in flow.behind(value):
        is_after = is_after or end not in maker or short(steps[maker[end]]) not in VIEWS
        if is_after:
            yield start
            is_after = False
        end = start


def _behind(flow: DataFlow, value: int, count: int) -> int | None:
    """The `count`-th of these values."""
    return next(itertools.islice(_starts(flow, value), count - 1, None), None)


def _on_segment(count: int, function: Callable[..., Any]) -> Any:
    """Apply a function to the start of a segment, in place of its steps."""

    def make(program: Program, flow: DataFlow, at: Step) -> Change | None:
        start = _behind(flow, at.output, count)
        if start is None:
            return None
        return lambda values: _of_shape(_like(function(values[start]), program.values[at.output]), values, at, program)

    return make


def _like(value: Any, meant: Any) -> Any:
    """A value whose axes are in another order, in that of the value that it stands for, if there is one way alone."""
    if value.shape == meant.shape or value.numel() != meant.numel() or value.dtype != meant.dtype:
        return value
    orders = [
        order
        for order in itertools.permutations(range(value.ndim))
        if tuple(value.shape[axis] for axis in order) == tuple(meant.shape)
    ]
    return value.permute(orders[0]) if len(orders) == 1 else value


SEGMENTS = 4
"""How many values back a segment may begin; a longer one is found as two."""


def segments(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that leave a segment out, apply it twice, or apply two in the other order."""
    if step.output not in flow.passes:
        return
    for count, start in enumerate(itertools.islice(_starts(flow, step.output), SEGMENTS), 1):
        what = _segment_in_words(flow, start, step)
        same = program.values[start].shape == program.values[step.output].shape
        if short(step) in VIEWS and not same:
            continue
        if same or program.values[start].numel() == program.values[step.output].numel():
            yield Edit("left out", f"leaves out {what}", _on_segment(count, lambda x: x), 1, (count,))
            yield Edit("twice", f"applies {what} twice", _twice(count), 2, (count,))
            inside = {name for each in flow.between(start, step.output) for name in _parameters(program, each)}
            if not inside and count <= SEGMENTS:
                for label, function in _functions()[0].items():
                    yield Edit(
                        "function", f"applies {label} in place of {what}", _on_segment(count, function), 2, (count,)
                    )
            for label, function in (_functions()[1] | _norms(context)).items():
                if not inside:
                    yield Edit(
                        "normalization",
                        f"divides by {label}, where theirs has {what}",
                        _on_segment(count, function),
                        2,
                        (count,),
                    )
        for first in range(SEGMENTS, 0, -1):
            yield Edit(
                "exchanged", _exchange_in_words(flow, step, count, first), _exchanged(count, first), 2, (count, first)
            )


def steps_exchanged(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that apply a step with several operands before the segment that makes one of them."""
    if short(step) in VIEWS or len([index for index in step.inputs if index in flow.passes]) < 2:
        return
    for place, item in enumerate(step.args):
        if not isinstance(item, Ref) or item.index not in flow.passes or item.index not in program.maker:
            continue
        makes = program.steps[program.maker[item.index]]
        for count in range(SEGMENTS, 0, -1):
            start = _behind(flow, item.index, count)
            if start is not None:
                earlier = _segment_in_words(flow, start, makes)
                says = f"computes `{short(step)}` of `{_line(step)}` before {earlier}; theirs is the other way round"
                yield Edit("exchanged", says, _step_before(place, count), 2)


def _step_before(place: int, count: int) -> Any:
    """The step on the start of the segment that makes an operand, then that segment."""

    def make(program: Program, flow: DataFlow, at: Step) -> Change | None:
        middle = at.args[place].index
        start = _behind(flow, middle, count)
        if start is None:
            return None

        def change(values: Values) -> Any:
            args = filled(at.args, values)
            args = (*args[:place], _like(values[start], values[middle]), *args[place + 1 :])
            once = executed(at.func, args, at.kwargs, None)
            made = flow.through(start, middle, _like(once, values[start]), values)
            return _of_shape(_like(made, program.values[at.output]), values, at, program)

        return change

    return make


def _parameters(program: Program, step: Step) -> list[str]:
    return [program.names.get(index, "") for index in step.inputs if index in program.parameters]


def _segment_in_words(flow: DataFlow, start: int, step: Step) -> str:
    """The line that runs all steps of a segment, as code; the name of the operation for one step."""
    steps = [each for each in flow.between(start, step.output) if short(each) not in VIEWS] or [step]
    line = common_line(steps)
    if len(steps) == 1 or line is None:
        return f"`{short(step)}` in `{_line(step)}`"
    return f"`{line.code}`"


def common_line(steps: Sequence[Step]) -> operation.Source | None:
    """Return the innermost line that runs all of these steps; None if there is none."""
    first, *others = steps
    shared = [place for place in first.places if all(place in each.places for each in others)]
    return first.stack[first.places.index(shared[0])] if shared else None


def _exchange_in_words(flow: DataFlow, step: Step, last: int, first: int) -> str:
    middle = _behind(flow, step.output, last)
    start = None if middle is None else _behind(flow, middle, first)
    if middle is None or start is None or middle not in flow.program.maker:
        return ""
    makes = flow.program.steps[flow.program.maker[middle]]
    later, earlier = _segment_in_words(flow, middle, step), _segment_in_words(flow, start, makes)
    return f"computes {later} before {earlier}; theirs is the other way round"


def _twice(count: int) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change | None:
        start = _behind(flow, at.output, count)
        if start is None:
            return None

        def change(values: Values) -> Any:
            once = flow.through(start, at.output, values[start], values)
            return _of_shape(flow.through(start, at.output, _like(once, values[start]), values), values, at, program)

        return change

    return make


def _exchanged(last: int, first: int) -> Any:
    """The last segment before the first: x → first → y → last → z."""

    def make(program: Program, flow: DataFlow, at: Step) -> Change | None:
        middle = _behind(flow, at.output, last)
        start = None if middle is None else _behind(flow, middle, first)
        if middle is None or start is None:
            return None

        def change(values: Values) -> Any:
            once = flow.through(middle, at.output, _like(values[start], values[middle]), values)
            made = flow.through(start, middle, _like(once, values[start]), values)
            return _of_shape(_like(made, program.values[at.output]), values, at, program)

        return change

    return make


# operands -----------------------------------------------------------------------------------------------------------

OPERANDS = 24
"""How many other values are tried in place of an operand, the nearest first; trying all would take minutes."""


def operands(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that take another value of the same shape, made or used before."""
    for at, item in enumerate(step.args):
        if not isinstance(item, Ref) or short(step) in COPIES:
            continue
        for source in itertools.islice(_sources(program, step, item.index), OPERANDS):
            index = source.index(program)
            says = (
                f"gives `{short(step)}` {_origin(program, index)}, where theirs gives it {_origin(program, item.index)}"
            )
            yield Edit("operand", says, _operand(at, step.site, source), rank=3)
    for at, item in enumerate(step.args):
        if isinstance(item, list) and len(item) > 1 and all(isinstance(each, Ref) for each in item):
            says = f"has the parts in the other order in `{_line(step)}`"
            yield Edit("operands", says, lambda program, flow, at, p=at: _with_list(at, p), rank=1)
    if len(step.args) > 1 and isinstance(step.args[0], Ref) and isinstance(step.args[1], Ref):
        says = f"exchanges the two operands of `{short(step)}` in `{_line(step)}`"
        yield Edit("operands", says, lambda program, flow, at: _reordered(at), rank=1)


COPIES = frozenset(["clone", "detach", "alias", "to_copy", "lift_fresh", "copy", "t", "contiguous"])


@dataclass(frozen=True)
class Source:
    """A value that a step makes, or is given."""

    step: Step
    output: int = -1
    argument: int = -1

    def index(self, program: Program, step: Step | None = None) -> int:
        """Return the value, of the step itself or of another one of its site."""
        step = step or self.step
        return step.outputs[self.output] if self.argument < 0 else step.args[self.argument].index

    def near(self, program: Program, at: Step, is_same_site: bool) -> int | None:
        """Return the value of the last step of its site before another; of its line, for a step elsewhere."""
        alike = program.places.get(self.step.site, ()) if is_same_site else program.lines.get(self.step.line, ())
        before = [number for number in alike if number < at.number]
        return self.index(program, program.steps[before[-1]]) if before else None


def _sources(program: Program, step: Step, index: int) -> Iterator[Source]:
    """The values that a step may be given instead of one, the nearest first, since the step last ran."""
    mine, seen = program.values[index], {index, _root(program, index)}
    before = [number for number in program.places[step.site] if number < step.number]
    for number in range(step.number - 1, before[-1] if before else -1, -1):
        other = program.steps[number]
        found = [(place, Source(other, output=k)) for k, place in enumerate(other.outputs)]
        found += [(item.index, Source(other, argument=k)) for k, item in enumerate(other.args) if isinstance(item, Ref)]
        for place, source in found:
            value, root = program.values[place], _root(program, place)
            if place not in program.maker or value.numel() != mine.numel() or value.dtype != mine.dtype:
                continue
            if root in seen or (short(other) in VIEWS and value.shape != mine.shape):
                continue
            if value.shape == mine.shape or value.shape[-1:] == mine.shape[-1:]:
                seen.add(root if short(other) not in VIEWS else place)
                yield source


def _root(program: Program, index: int) -> int:
    """The value that a value is a view of, if it has its numbers in the same order."""
    while index in program.maker and short(made := program.steps[program.maker[index]]) in VIEWS and made.inputs:
        before = program.values[made.inputs[0]]
        if before.numel() != program.values[index].numel() or not before.reshape(-1).equal(
            program.values[index].reshape(-1)
        ):
            break
        index = made.inputs[0]
    return index


def _result(step: Step) -> str:
    return f"the result of `{_line(step)}`"


def _origin(program: Program, index: int) -> str:
    if index in program.names:
        return program.names[index]
    return _result(program.steps[program.maker[index]]) if index in program.maker else "a constant"


def _with_list(step: Step, place: int) -> Change:
    args = tuple(item[::-1] if index == place else item for index, item in enumerate(step.args))
    return lambda values: executed(step.func, filled(args, values), step.kwargs, None)


def _reordered(step: Step) -> Change:
    return lambda values: executed(
        step.func,
        tuple(filled(each, values) for each in (step.args[1], step.args[0], *step.args[2:])),
        step.kwargs,
        None,
    )


def _operand(place: int, site: Hashable, source: Source) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change | None:
        other = source.near(program, at, at.site == site)
        if other is None:
            return None
        mine = program.values[at.args[place].index].shape

        def changed(values: Values) -> Any:
            args = list(filled(at.args, values))
            args[place] = values[other].reshape(mine)
            return executed(at.func, args, at.kwargs, None)

        return changed

    return make


# order of the elements ----------------------------------------------------------------------------------------------


def orders(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that put the elements of a result, or of a parameter, in another order, or change their sign."""
    value = program.values.get(step.output)
    if value is None or not (value.is_floating_point() or value.is_complex()):
        return
    where = f"the result of `{_line(step)}`"
    yield Edit("sign", f"has {where} with the other sign", _of_result(lambda x: -x), rank=1)
    for axis in range(-1, -value.ndim - 1, -1):
        size = value.shape[axis]
        for parts in [n for n in range(2, size) if size % n == 0]:
            says = f"has {where} as {parts} × {size // parts} on axis {axis}, in the other order"
            yield Edit("order", says, _of_result(_regrouped(axis, parts)), rank=2)
        if size > 1:
            if size % 2 == 0:
                yield Edit(
                    "order",
                    f"exchanges the halves of {where} on axis {axis}",
                    _of_result(_rolled(axis, size // 2)),
                    rank=2,
                )
            for by in (1, -1):
                yield Edit("order", f"shifts {where} by {by} on axis {axis}", _of_result(_rolled(axis, by)), rank=3)
            yield Edit("order", f"reverses {where} on axis {axis}", _of_result(lambda x, a=axis: x.flip(a)), rank=3)
    if value.ndim > 1:
        for a, b in itertools.combinations(range(-1, -value.ndim - 1, -1), 2):
            if value.shape[a] == value.shape[b] and value.shape[a] > 1:
                says = f"exchanges the axes {b} and {a} of {where}"
                yield Edit("order", says, _of_result(lambda x, a=a, b=b: x.transpose(a, b)), rank=2)
    for place, item in enumerate(step.args):
        if isinstance(item, Ref) and item.index in program.given and program.values[item.index].is_floating_point():
            yield from _of_given(program, place, item.index)


def _of_given(program: Program, place: int, index: int) -> Iterator[Edit]:
    name, value = program.names.get(index, "a constant"), program.values[index]
    changes: dict[str, Callable[[Any], Any]] = {
        f"adds 1 to {name}": lambda x: x + 1,
        f"subtracts 1 from {name}": lambda x: x - 1,
        f"does not use {name}": lambda x: x * 0,
        f"has ones for {name}": lambda x: x * 0 + 1,
    }
    if value.ndim == 2 and value.shape[0] == value.shape[1]:
        changes[f"transposes {name}"] = lambda x: x.mT
    if index not in program.parameters and value.ndim and bool((value > 0).all()):
        last = float(value.reshape(-1)[-1])
        for base in KNOWN_NUMBERS[-5:]:
            # frequencies are base**(-i / n): a power of them has another base
            steps = value.numel()
            if steps > 2 and 0 < last < 1:
                old = last ** (-steps / (steps - 1))
                power = math.log(base) / math.log(old)
                changes[f"has {base:g} for the base {old:.6g} of {name}"] = lambda x, p=power: x**p
    for says, change in changes.items():
        yield Edit("parameter", says, _of_operand(place, change), rank=1)


def _of_result(change: Callable[[Any], Any]) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change:
        def changed(values: Values) -> Any:
            now = dict(values)
            at.run(now, None)
            return _of_shape(change(now[at.output]), values, at, program)

        return changed

    return make


def _of_operand(place: int, change: Callable[[Any], Any]) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change:
        def changed(values: Values) -> Any:
            args = [filled(item, values) for item in at.args]
            args[place] = change(args[place])
            return executed(at.func, tuple(args), at.kwargs, None)

        return changed

    return make


def _regrouped(axis: int, parts: int) -> Callable[[Any], Any]:
    """Elements as parts × rest, read as rest × parts."""

    def change(x: Any) -> Any:
        at = axis % x.ndim
        shape = (*x.shape[:at], parts, x.shape[at] // parts, *x.shape[at + 1 :])
        return x.reshape(shape).transpose(at, at + 1).reshape(x.shape)

    return change


def _rolled(axis: int, by: int) -> Callable[[Any], Any]:
    return lambda x: x.roll(by, axis)


# parameters ---------------------------------------------------------------------------------------------------------


def parameters(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that use the parameters of a module beside, or those of a norm in another way."""
    own = {place: _given_behind(program, item) for place, item in enumerate(step.args)}
    own = {place: index for place, index in own.items() if index in program.parameters}
    if not own or short(step) in VIEWS:
        return
    module = program.names[next(iter(own.values()))].rpartition(".")[0]
    for other in _modules_beside(program, module):
        says = f"uses the parameters of {other} for those of {module} in `{_line(step)}`"
        names = module.rpartition(".")[2], other.rpartition(".")[2]
        yield Edit("parameter", says, _of_module(sorted(own), *names), rank=2)
    if short(step) == "native_layer_norm":
        for says, change in NORMS.items():
            yield Edit("normalization", f"{says} in `{_line(step)}`", _norm(change), rank=1)
            what = f"{says}, and PyTorch's default epsilon, in `{_line(step)}`"
            yield Edit("normalization", what, _norm(lambda x, w, b, _, c=change: (*c(x, w, b, 0)[:3], 1e-5)), rank=1)


def _given_behind(program: Program, item: Any) -> int:
    """The given value that an argument is, or is a view of; -1 if it is none."""
    if not isinstance(item, Ref):
        return -1
    index = item.index
    while index in program.maker and short(made := program.steps[program.maker[index]]) in VIEWS and made.inputs:
        index = made.inputs[0]
    return index if index in program.given else -1


def _modules_beside(program: Program, module: str) -> list[str]:
    """The modules of the same parent that have parameters of the same names and shapes."""
    shapes: dict[str, dict[str, Any]] = {}
    for index in program.parameters:
        owner, _, name = program.names.get(index, "").rpartition(".")
        shapes.setdefault(owner, {})[name] = program.values[index].shape
    parent = module.rpartition(".")[0]
    return [
        owner
        for owner, names in shapes.items()
        if owner != module and owner.rpartition(".")[0] == parent and names == shapes[module]
    ]


def _of_module(places: Sequence[int], old: str, new: str) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change | None:
        by_name = {name: index for index, name in program.names.items()}
        others: dict[int, int] = {}
        for place in places:
            parent, _, leaf = program.names[_given_behind(program, at.args[place])].rpartition(".")
            before, _, module = parent.rpartition(".")
            name = f"{before}.{new}.{leaf}" if before else f"{new}.{leaf}"
            if module != old or name not in by_name:
                return None
            others[place] = by_name[name]

        def changed(values: Values) -> Any:
            args = list(filled(at.args, values))
            for place, index in others.items():
                shape = args[place].shape
                args[place] = values[index] if values[index].shape == shape else values[index].mT
            return executed(at.func, args, at.kwargs, None)

        return changed

    return make


NORMS: dict[str, Callable[[Any, Any, Any, float], Any]] = {
    "uses no weight and no bias": lambda x, weight, bias, eps: (x, None, None, eps),
    "uses no bias": lambda x, weight, bias, eps: (x, weight, None, eps),
    "uses no weight": lambda x, weight, bias, eps: (x, None, bias, eps),
    "adds 1 to the weight": lambda x, weight, bias, eps: (x, weight + 1, bias, eps),
}
"""What a layer norm may be given instead of its own input, weight, bias and epsilon."""


def _norm(change: Callable[[Any, Any, Any, float], Any]) -> Any:
    def make(program: Program, flow: DataFlow, at: Step) -> Change:
        def changed(values: Values) -> Any:
            x, shape, weight, bias, eps = filled(at.args, values)
            x, weight, bias, eps = change(x, weight, bias, eps)
            return executed(at.func, (x, shape, weight, bias, eps), at.kwargs, None)

        return changed

    return make


# masks, rounding ----------------------------------------------------------------------------------------------------


def masks(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that mask other keys."""
    for place, item in enumerate(step.args):
        if not isinstance(item, Ref) or not _is_mask(program.values[item.index]):
            continue
        for says, change in MASKS.items():
            yield Edit("mask", says, _of_operand(place, _masking(change)), rank=1)


def _is_mask(value: Any) -> bool:
    if value.ndim < 2 or value.shape[-1] < 2:
        return False
    return str(value.dtype) == "torch.bool" or (value.is_floating_point() and bool((value < EXACT_MASK_BELOW).any()))


def _masking(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Change which keys a mask shows; one of numbers is 0 where it shows a key."""

    def changed(mask: Any) -> Any:
        if str(mask.dtype) == "torch.bool":
            return change(mask)
        shown = change(mask > EXACT_MASK_BELOW)
        return (
            mask.clamp(min=EXACT_MASK_BELOW)
            .where(mask > EXACT_MASK_BELOW, mask.new_zeros(()))
            .maskedfilled(~shown, float(mask.min()))
        )

    return changed


def _later(x: Any) -> Any:
    """Each query sees one more key."""
    import torch

    more = x.roll(1, -1)
    more[..., 0] = x[..., 0]
    return torch.logical_or(x, more)


def _earlier(x: Any) -> Any:
    import torch

    fewer = x.roll(-1, -1)
    fewer[..., -1] = False
    return torch.logical_and(x, fewer)


def _causal(x: Any) -> Any:
    import torch

    return torch.ones_like(x).tril(x.shape[-1] - x.shape[-2])


def _padding(x: Any) -> Any:
    return x.any(-2, keepdim=True).expand_as(x)


def _longer(x: Any) -> Any:
    more = x.roll(-1, -1)
    more[..., -1] = False
    return x | more


def _shorter(x: Any) -> Any:
    fewer = x.roll(1, -1)
    fewer[..., 0] = True
    return x & fewer


MASKS: dict[str, Callable[[Any], Any]] = {
    "masks no key": lambda x: x | True,
    "ignores padding in the mask": _causal,
    "shows later positions: the mask is not causal": _padding,
    "shows one later key": _later,
    "hides each query's last key": _earlier,
    "shows one more key before the window": _longer,
    "hides the first key of the window": _shorter,
    "hides the keys that theirs shows": lambda x: ~x,
    "has queries and keys of the mask exchanged": lambda x: x.mT,
}


ROUNDED = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
"""The largest error of a rounding, as a share of the number."""


def roundings(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that round a result: the port's own numbers, if each is one of the reference's rounded."""
    value = program.values.get(step.output)
    if value is None or not value.is_floating_point() or short(step) in VIEWS:
        return
    for dtype in ROUNDED:
        if any(rounded.size == value.numel() for rounded in flow.rounded.get(dtype, ())):
            yield Edit("rounding", f"rounds {_result(step)} to {dtype}", _rounded(dtype), rank=4)


def _rounded(dtype: str) -> Any:
    import torch

    def make(program: Program, flow: DataFlow, at: Step) -> Change:
        def changed(values: Values) -> Any:
            now = dict(values)
            at.run(now, None)
            exact = now[at.output]
            for rounded in (each for each in flow.rounded[dtype] if each.size == exact.numel()):
                theirs = torch.from_numpy(rounded)
                theirs = theirs.reshape(exact.shape) if theirs.ndim != exact.ndim else _like(theirs, exact)
                allowed = ROUNDED[dtype] * exact.abs() + RULES["float32"].budget(
                    0, epsilon("float32"), exact.abs().max()
                )
                if theirs.shape == exact.shape and bool(((theirs - exact).abs() <= allowed).all()):
                    return theirs.to(exact.dtype)
            raise ValueError("the port rounds nothing like it")

        return changed

    return make


def scales(program: Program, flow: DataFlow, step: Step, context: Context) -> Iterator[Edit]:
    """Yield edits that multiply a result by a number, or add one, fitted to the port's value."""
    import numpy as np

    from transparity_conformance.against.values import fingerprint

    value = program.values.get(step.output)
    if value is None or not value.is_floating_point():
        return
    ours = fingerprint(value)
    for theirs in context.wanted:
        if ours is None or ours.size != theirs.size or not np.isfinite(ours).all():
            continue
        inside = (np.abs(ours) < -EXACT_MASK_BELOW) & (np.abs(theirs) < -EXACT_MASK_BELOW)
        if not inside.all() or not np.ptp(ours):
            continue
        factor = float(np.linalg.norm(theirs - theirs.mean()) / np.linalg.norm(ours - ours.mean()))
        for sign in (1, -1):
            ordered = np.sort(sign * factor * ours)
            shift = float((theirs - ordered).mean())
            if np.abs(ordered + shift - theirs).max() > 1e-4 * np.abs(theirs).max():
                continue
            a = sign * factor
            says = _scaled_in_words(a, shift, float(np.abs(theirs).max()), program, step)
            yield Edit("scale", says, _of_result(lambda x, a=a, b=shift: x * a + b), rank=3)


def _scaled_in_words(a: float, b: float, size: float, program: Program, step: Step) -> str:
    where = f"the result of `{_line(step)}`"
    times = f"multiplies {where} by {a:.6g}" if abs(a - 1) > 1e-5 else ""
    plus = f"adds {b:.6g} to {where}" if abs(b) > 1e-5 * size else ""
    return " and ".join(filter(None, [times, plus])) or f"changes {where}"


SIMPLE = (numbers, functions, segments, steps_exchanged, parameters, masks)
FITTED = (orders, operands, scales, roundings)
"""Edits of which there are many at each step, or whose numbers are taken from the port; they are tried later."""
