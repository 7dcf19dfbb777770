"""Edits that reorder the elements of a result, or change their sign."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from transparity_conformance.against.edits.edit import At, Context, Edit, result_of
from transparity_conformance.listening.program import Change


def orders(at: At, context: Context) -> Iterator[Edit]:
    value = at.value
    if value is None or not (value.is_floating_point() or value.is_complex()):
        return
    where = result_of(at.step)
    yield _edit(f"has {where} with the opposite sign", _negated, "sign", 1)
    for axis in range(-1, -value.ndim - 1, -1):
        yield from _along(axis, value.shape[axis], where)
    for a, b in itertools.combinations(range(-1, -value.ndim - 1, -1), 2):
        if value.shape[a] == value.shape[b] > 1:
            yield _edit(f"swaps the axes {b} and {a} of {where}", functools.partial(_transposed, a=a, b=b))


def _along(axis: int, size: int, where: str) -> Iterator[Edit]:
    """Yield edits that reorder elements along one axis."""
    for parts in [n for n in range(2, size) if size % n == 0]:
        says = f"orders {where} on axis {axis} as {size // parts} × {parts} instead of {parts} × {size // parts}"
        yield _edit(says, functools.partial(_regrouped, axis=axis, parts=parts))
    if size > 1:
        if size % 2 == 0:
            yield _edit(f"swaps the halves of {where} on axis {axis}", _rolled(axis, size // 2))
        for by in (1, -1):
            yield _edit(f"shifts {where} by {by} on axis {axis}", _rolled(axis, by), rank=3)
        yield _edit(f"reverses {where} on axis {axis}", functools.partial(_flipped, axis=axis), rank=3)


def _edit(says: str, change: Callable[[Any], Any], kind: str = "order", rank: int = 2) -> Edit:
    return Edit(kind, says, functools.partial(_changed, change=change), rank)


def _changed(at: At, change: Callable[[Any], Any]) -> Change:
    return at.with_result(change)


def _negated(x: Any) -> Any:
    return -x


def _regrouped(x: Any, axis: int, parts: int) -> Any:
    """Return elements of the order (parts, rest) in the order (rest, parts)."""
    at = axis % x.ndim
    shape = (*x.shape[:at], parts, x.shape[at] // parts, *x.shape[at + 1 :])
    return x.reshape(shape).transpose(at, at + 1).reshape(x.shape)


def _rolled(axis: int, by: int) -> Callable[[Any], Any]:
    return lambda x: x.roll(by, axis)


def _flipped(x: Any, axis: int) -> Any:
    return x.flip(axis)


def _transposed(x: Any, a: int, b: int) -> Any:
    return x.transpose(a, b)
