"""Edits that change a number among a step's arguments, replace a table, or round a result."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Self

from transparity_conformance.against.edits.edit import (
    VIEWS,
    At,
    Context,
    Edit,
    Path,
    edit_at,
    given_of,
    part_of,
    references,
    result_of,
    short,
)
from transparity_conformance.against.flow import as_shaped
from transparity_conformance.listening.program import Change, Ref, Values
from transparity_conformance.oracle.budgets import RULES, epsilon

KNOWN = (0.0, 1.0, -1.0, 2.0, 0.5, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 1e-15, 1e3, 1e4, 1e5, 5e5, 1e6)
"""Common factors, epsilons and rotary bases."""

WITH_SIZES = frozenset(["view", "unsafe_view", "expand", "reshape", "as_strided", "new_zeros", "zeros", "ones", "full"])


def numbers(at: At, context: Context) -> Iterator[Edit]:
    if short(at.step) in WITH_SIZES:
        yield from _sizes(at)
        return
    if short(at.step) == "slice":
        yield from _slices(at)
    for path, old in number_arguments(at):
        others: Iterable[float] = [old - 1, old + 1, -1, -2, 0, 1, 2]
        if isinstance(old, bool | float):
            others = [not old] if isinstance(old, bool) else _other_fractions(old, at, context)
        for value in dict.fromkeys(others):
            if value != old and not _limits_nothing(at, path, value):
                yield number_edit(at, path, old, value)


def _limits_nothing(at: At, path: Path, value: Any) -> bool:
    """Return whether the step clips its operand, but the limit `value` would clip no element. Another edit, which
    leaves out the step, then describes the port better."""
    if not short(at.step).startswith("clamp"):
        return False
    with contextlib.suppress(Exception):  # the operation may refuse the number
        return bool(with_number(at, path, value)(at.program.values).equal(at.program.values[at.step.inputs[0]]))
    return False


def number_edit(at: At, path: Path, old: Any, value: Any, rank: int = 0) -> Edit:
    def numbers() -> str:  # called only for the few edits that are told
        if isinstance(old, Named) and value == 0:
            return f"does not use {old.family}"
        return f"uses {_in_words(value)} instead of {_in_words(old)}"

    says = lambda: f"{numbers()} in {part_of(at.program, [at.step])}"
    wider = _of_sizes(at, path, old, value)
    if isinstance(old, float):
        what = "reads this tensor" if isinstance(old, Named) else f"passes this number to `{short(at.step)}`"
        says_wherever = lambda: f"{numbers()} wherever the reference {what}"
        make = functools.partial(_wherever, path=path, old=old, value=value, name=at.step.name)
        wider += (Edit("number", says_wherever, make, rank + 1, is_everywhere=True),)
    return Edit("number", says, functools.partial(with_number, path=path, value=value), rank, wider=wider)


def _wherever(at: At, path: Path, old: float, value: float, name: str) -> Change | None:
    if isinstance(old, Named):
        read = [where for where, each in number_arguments(at) if getattr(each, "family", "") == old.family]
        return with_number(at, read[0], value) if read else None
    is_used = at.step.name == name and dict(number_arguments(at)).get(path) == old
    return with_number(at, path, value) if is_used else None


POWERS = {"n": 1.0, "1/n": -1.0, "√n": 0.5, "1/√n": -0.5}
"""Numbers that programmers compute from the size n of an axis, each with the exponent of n."""


def _of_sizes(at: At, path: Path, old: Any, value: Any) -> tuple[Edit, ...]:
    """Return edits that compute `value` from the size of an axis, such as 1/√n, so that the value differs between
    calls."""

    def says(axis: int, form: str) -> str:
        size = f"where n is the size of axis {axis} (here {_shape_of(at)[axis]})"
        return f"uses {form} instead of {_in_words(old)} in {part_of(at.program, [at.step])}, {size}"

    return tuple(
        Edit("number", functools.partial(says, axis, form), functools.partial(_with_size, path, axis, power), rank=1)
        for axis, size in enumerate(_shape_of(at))
        for form, power in POWERS.items()
        if size > 1 and size**power == value
    )


def _with_size(path: Path, axis: int, power: float, at: At) -> Change:
    return with_number(at, path, _shape_of(at)[axis] ** power)


def _shape_of(at: At) -> Sequence[int]:
    return getattr(at.program.values[at.step.inputs[0]], "shape", ()) if at.step.inputs else ()


class Named(float):
    """The value of a tensor with one element. `family` is the tensor's name, with N for the numbers of layers."""

    def __new__(cls, value: float, name: str) -> Self:
        made = super().__new__(cls, value)
        made.family = re.sub(r"\.\d+(?=\.)", ".N", name)
        return made

    family: str


def number_arguments(at: At) -> Iterator[tuple[Path, Any]]:
    """Yield the numbers among a step's arguments, with their paths. Also yield named tensors with one element."""
    program = at.program

    def inside(path: Path, item: Any) -> Iterator[tuple[Path, Any]]:
        if isinstance(item, bool | int | float):
            yield path, item
        elif isinstance(item, Ref) and (name := program.names.get(given_of(program, item))):
            value = program.values[item.index]
            if value.numel() == 1 and value.is_floating_point():
                yield path, Named(float(value), name)
        elif isinstance(item, list | tuple):
            for place, each in enumerate(item):
                yield from inside((*path, place), each)

    for place, item in enumerate(at.step.args):
        yield from inside((place,), item)
    for name, item in at.step.kwargs.items():
        yield from inside((name,), item)


def _other_fractions(old: float, at: At, context: Context) -> Iterator[float]:
    yield from (-old, 2 * old, old / 2, old * old)
    if old > 0:
        yield from (math.sqrt(old), 1 / old)
    shapes = (getattr(at.program.values[index], "shape", ()) for index in at.step.inputs)
    for size in sorted({size for shape in shapes for size in shape if size > 1}):
        yield from (size**power for power in POWERS.values())
    yield from KNOWN
    yield from context.numbers
    if short(at.step) in ("mul", "div"):
        yield from (size**power for size in context.numbers if size > 1 for power in (-0.5, 0.5))


def _in_words(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if isinstance(value, Named):
        return value.family
    if float(plain := f"{value:.6g}") == value:
        return plain
    squared, epsilon = value * value, sys.float_info.epsilon
    roots = {"√{}": squared, "1/√{}": 1 / squared if squared else math.inf}
    for form, square in roots.items() if math.isfinite(sum(roots.values())) else ():
        whole = round(square)
        # Every float is near the root of some large whole number.
        is_root = value > 0 and whole < epsilon**-0.5 and math.isclose(square, whole, rel_tol=8 * epsilon)
        if is_root and math.isqrt(whole) ** 2 != whole:
            return f"{plain} ({form.format(whole)})"
    return plain


def with_number(at: At, path: Path, value: Any) -> Change:
    return at.changing(path, lambda old: old.new_full(old.shape, value) if hasattr(old, "new_full") else value)


PLACES: dict[str, Callable[[int, int], int]] = {
    "the last": lambda first, spare: spare,
    "the first": lambda first, spare: 0,
    "one place later": lambda first, spare: first + 1,
    "one place earlier": lambda first, spare: first - 1,
}
"""Wrong starts of a slice, as functions of the right start and the number of elements outside the slice."""


def _slices(at: At) -> Iterator[Edit]:
    if len(at.step.args) not in (3, 4):  # without an axis or a start, or with a distance between elements
        return
    size, first = at.value.shape[at.step.args[1]], _first_of(at)
    for where, place in PLACES.items():
        says = f"takes {size} elements ({where}) instead of elements {first} to {first + size - 1} in `{at.line}`"
        yield Edit("number", says, functools.partial(_sliced, place=place), rank=1)


def _first_of(at: At) -> int:
    _, axis, first, *_ = at.step.args
    whole = at.program.values[at.step.inputs[0]].shape[axis]
    return max(first + whole, 0) if first < 0 else int(first)


def _sliced(at: At, place: Callable[[int, int], int]) -> Change | None:
    axis, first = at.step.args[1], _first_of(at)
    whole, size = at.program.values[at.step.inputs[0]].shape[axis], at.value.shape[axis]
    new = place(first, whole - size)
    if new == first or not 0 <= new <= whole - size:
        return None
    return at.with_arguments(lambda args, _: [args[0], axis, new, new + size])


def _sizes(at: At) -> Iterator[Edit]:
    for place, sizes in enumerate(at.step.args):
        if isinstance(sizes, list | tuple) and all(isinstance(size, int) for size in sizes):
            for first in range(len(sizes) - 1):
                other = _exchanged(sizes, first)
                if other != list(sizes):
                    says = f"uses the shape {tuple(other)} instead of {tuple(sizes)} in `{at.line}`"
                    yield edit_at((place,), "shape", says, functools.partial(_exchanged, first=first), 2)


def _exchanged(sizes: Sequence[int], first: int) -> list[int]:
    return [*sizes[:first], sizes[first + 1], sizes[first], *sizes[first + 2 :]]


ROUNDED = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


def roundings(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that round only a step's result, or also the step's operands."""
    if at.value is None or not at.value.is_floating_point() or short(at.step) in VIEWS:
        return
    for dtype in ROUNDED:
        if any(rounded.size == at.value.numel() for rounded in at.flow.rounded.get(dtype, ())):
            says = f"rounds {result_of(at.step)} to {dtype}"
            yield Edit("rounding", says, functools.partial(_rounded, dtype=dtype), rank=4)
            says = f"computes {part_of(at.program, [at.step])} in {dtype}"
            yield Edit("rounding", says, functools.partial(_rounded, dtype=dtype, also_operands=True), rank=4)


def _rounded(at: At, dtype: str, *, also_operands: bool = False) -> Change:
    """Return a change that inserts the port's rounded values, because frameworks may round ties differently."""

    def changed(values: Values) -> Any:
        now = ChainMap({}, values)
        for index in at.step.inputs if also_operands else ():
            if now[index].is_floating_point():
                now[index] = _of_the_port(at, now[index], dtype)
        return _of_the_port(at, at.step.result(now), dtype)

    return changed


def _of_the_port(at: At, exact: Any, dtype: str) -> Any:
    """Return the port's value that equals `exact` rounded to a dtype. Raise `ValueError` without such a value."""
    import torch

    if exact.to(getattr(torch, dtype)).to(exact.dtype).equal(exact):
        return exact
    largest = exact[exact.isfinite()].abs().max()
    allowed = ROUNDED[dtype] * exact.abs() + RULES["float32"].budget(0, epsilon("float32"), largest)
    for each in at.flow.rounded[dtype]:
        if each.size == exact.numel():
            theirs = torch.from_numpy(each)
            theirs = theirs.reshape(exact.shape) if theirs.ndim != exact.ndim else as_shaped(theirs, exact)
            if theirs.shape == exact.shape and bool(((theirs == exact) | ((theirs - exact).abs() <= allowed)).all()):
                return theirs.to(exact.dtype)
    raise ValueError("no rounded value of the port matches the reference")


def tables(at: At, context: Context) -> Iterator[Edit]:
    import torch

    for place, item in references(at.step):
        index, ours = given_of(at.program, item), at.program.values[item.index]
        is_table = index >= 0 and index not in at.program.parameters and index not in at.flow.passes
        if not is_table or not ours.is_floating_point() or ours.numel() < 2:
            continue
        name = at.program.names.get(index, f"the constant in `{at.line}`")
        sizes = [size for size in ours.shape if size > 1]
        alike = [each for each, value in context.lost.items() if [n for n in value.shape if n > 1] == sizes]
        for operation in alike:
            theirs = torch.from_numpy(context.lost[operation]).reshape(ours.shape)
            says = functools.partial(_other_numbers, name, ours, theirs)
            change = lambda _, theirs=theirs: theirs
            make = functools.partial(At.changing, path=(place,), change=change)
            yield Edit("number", says, make, rank=4, operation=operation)


def _other_numbers(name: str, ours: Any, theirs: Any) -> str:
    a, b = ours.reshape(-1), theirs.reshape(-1)
    differ = (a - b).abs() > RULES["float32"].budget(0, epsilon("float32"), float(a.abs().max()))
    first = int(differ.int().argmax())
    return (
        f"uses other numbers in {name}: {int(differ.sum())} of {a.numel()} differ; "
        f"the first is {float(b[first]):.6g} instead of {float(a[first]):.6g}"
    )
