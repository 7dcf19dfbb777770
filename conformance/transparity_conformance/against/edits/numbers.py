"""Edits of a number among the arguments of a step."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from transparity_conformance.against.edits.edit import At, Context, Edit, part_of, short
from transparity_conformance.listening.program import Change, Values, executed, filled

KNOWN = (0.0, 1.0, -1.0, 2.0, 0.5, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-12, 1e-15, 1e3, 1e4, 1e5, 5e5, 1e6)
"""Constants that models use: factors, epsilons, and bases of rotations."""

WITH_SIZES = frozenset(["view", "unsafe_view", "expand", "reshape", "as_strided", "new_zeros", "zeros", "ones", "full"])
"""Operations whose integers are sizes."""

Path = tuple[Any, ...]
"""The path to a number among the arguments: the place, and the place in a list; or a name."""


def numbers(at: At, context: Context) -> Iterator[Edit]:
    """Yield edits that use another number."""
    if short(at.step) in WITH_SIZES:
        yield from _sizes(at)
        return
    for path, old in _numbers(at):
        others = (_other_whole if isinstance(old, int) else _other_fractions)(old, at, context)
        for value in dict.fromkeys(others):
            if value != old:
                says = functools.partial(_says, at, value, old)
                yield Edit("number", says, functools.partial(_with_number, path=path, value=value))


def _says(at: At, value: Any, old: Any) -> str:
    return f"uses {_in_words(value)} instead of {_in_words(old)} in {part_of(at.program, [at.step])}"


def _numbers(at: At) -> Iterator[tuple[Path, Any]]:
    def inside(path: Path, item: Any) -> Iterator[tuple[Path, Any]]:
        if isinstance(item, bool | int | float):
            yield path, item
        elif isinstance(item, list | tuple):
            for place, each in enumerate(item):
                yield from inside((*path, place), each)

    for place, item in enumerate(at.step.args):
        yield from inside((place,), item)
    for name, item in at.step.kwargs.items():
        yield from inside((name,), item)


def _other_whole(old: int, at: At, context: Context) -> Sequence[int]:
    return [not old] if isinstance(old, bool) else [old - 1, old + 1, -1, -2, 0, 1, 2]


def _other_fractions(old: float, at: At, context: Context) -> Iterator[float]:
    """Yield numbers derived from the old one, from sizes and the configuration, and common constants."""
    yield from (-old, 2 * old, old / 2, old * old)
    if old > 0:
        yield from (math.sqrt(old), 1 / old)
    shapes = (getattr(at.program.values[index], "shape", ()) for index in at.step.inputs)
    for size in sorted({size for shape in shapes for size in shape if size > 1}):
        yield from (size**-0.5, 1 / size, size**0.5, float(size))
    yield from KNOWN
    yield from context.numbers
    if short(at.step) in ("mul", "div"):
        yield from (size**power for size in context.numbers if size > 1 for power in (-0.5, 0.5))


def _in_words(value: Any) -> str:
    """Return a number, with its name if it is a root of an integer or the inverse of one."""
    if not isinstance(value, float):
        return str(value)
    if float(plain := f"{value:.6g}") == value:
        return plain
    for form, square in (("√{}", value * value), ("1/√{}", 1 / (value * value) if value else 0.0)):
        whole = round(square)
        is_root = value > 0 and math.isclose(square, whole, rel_tol=8 * sys.float_info.epsilon)
        if is_root and math.isqrt(whole) ** 2 != whole:
            return f"{plain} ({form.format(whole)})"
    return plain


def _with_number(at: At, path: Path, value: Any) -> Change:
    def changed(values: Values) -> Any:
        args, kwargs = at.step.args, dict(at.step.kwargs)
        if isinstance(path[0], str):
            kwargs[path[0]] = value
        else:
            args = _replaced(args, path, value)
        tensors = list(filled(args, values))
        if at.step.aliases:  # in place: on a copy
            tensors[0] = tensors[0].clone()
        return executed(at.step.func, tensors, filled(kwargs, values), None)

    return changed


def _replaced(args: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    return type(args)(_replaced(item, path[1:], value) if place == path[0] else item for place, item in enumerate(args))


def _sizes(at: At) -> Iterator[Edit]:
    """Yield edits that swap two neighboring sizes."""
    for place, sizes in enumerate(at.step.args):
        if isinstance(sizes, list | tuple) and all(isinstance(size, int) for size in sizes):
            for first in range(len(sizes) - 1):
                other = [*sizes[:first], sizes[first + 1], sizes[first], *sizes[first + 2 :]]
                if other != list(sizes):
                    says = f"has the shape {tuple(other)} instead of {tuple(sizes)} in `{at.line}`"
                    yield Edit("shape", says, functools.partial(_reshaped, place=place, first=first), rank=2)


def _reshaped(at: At, place: int, first: int) -> Change:
    def exchanged(sizes: Sequence[int]) -> list[int]:
        return [*sizes[:first], sizes[first + 1], sizes[first], *sizes[first + 2 :]]

    return at.with_argument(place, exchanged)
