"""Edits that reorder or negate the elements of a result, and edits of masks."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator
from typing import Any

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.against.edits.edit import (
    At,
    Context,
    Edit,
    Function,
    edit_at,
    references,
    result_of,
    short,
)
from transparity_conformance.listening.program import Program, Step

SPLITTING, CUTTING = {"view", "unsafe_view", "reshape"}, {"split", "split_with_sizes", "chunk", "slice"}
"""Operations that may split one axis into several axes (`SPLITTING`), or one tensor into several tensors
(`CUTTING`)."""


def orders(at: At, context: Context) -> Iterator[Edit]:
    value = at.value
    if value is None or not (value.is_floating_point() or value.is_complex()):
        return
    where = result_of(at.step)
    yield edit_at((), "sign", f"has {where} with the opposite sign", operator.neg, 1)
    for axis in range(-1, -value.ndim - 1, -1):
        yield from _along(axis, value.shape[axis], where)
    for a, b in itertools.combinations(range(-1, -value.ndim - 1, -1), 2):
        if value.shape[a] == value.shape[b] > 1:
            swapped = lambda x, a=a, b=b: x.transpose(a, b).contiguous()  # a later step may be a view
            yield _edit(f"swaps the axes {b} and {a} of {where}", swapped)
    if not value.ndim:
        return
    start, end = _split_axes(at.program, at.step)
    sizes = (*value.shape[start : end - 1], *_parts(at.program, at.step.output, end - 1))
    for order in itertools.permutations(range(len(sizes))):
        yours, theirs = (" × ".join(str(sizes[axis]) for axis in each) for each in (order, sorted(order)))
        if yours != theirs:
            says = f"splits an axis of {where} into {yours} instead of {theirs}"
            yield _edit(says, functools.partial(_resplit, start=start, end=end, sizes=sizes, order=order), rank=1)


def _split_axes(program: Program, step: Step) -> tuple[int, int]:
    """Return the range (start, end) of axes into which a view splits one axis of its input; by default, the last
    axis."""
    after = program.values[step.output].shape
    before = program.values[step.inputs[0]].shape if short(step) in SPLITTING and step.inputs else after
    start = next((axis for axis, sizes in enumerate(zip(before, after, strict=False)) if sizes[0] != sizes[1]), -1)
    if start < 0 or len(before) >= len(after):
        return len(after) - 1, len(after)
    ends = itertools.accumulate(after[start:], operator.mul)
    return start, next((start + n for n, size in enumerate(ends, 1) if size == before[start]), len(after))


def _parts(program: Program, index: int, axis: int) -> tuple[int, ...]:
    """Return the sizes into which later steps split an axis of a value."""
    size = program.values[index].shape[axis]
    for number in program.readers_of(program.maker[index]):
        step = program.steps[number]
        after = program.values[step.output].shape
        if short(step) in CUTTING and len(after) > axis and 0 < after[axis] < size and size % after[axis] == 0:
            return size // after[axis], *_parts(program, step.output, axis)
        if short(step) in SPLITTING:
            start, end = _split_axes(program, step)
            if start == axis and end - start > 1:
                return *after[start : end - 1], *_parts(program, step.output, end - 1)
    return (size,)


def _resplit(x: Any, start: int, end: int, sizes: tuple[int, ...], order: tuple[int, ...]) -> Any:
    split = x.flatten(start, end - 1).unflatten(start, [sizes[axis] for axis in order])
    axes = [*range(start), *(start + order.index(axis) for axis in range(len(order)))]
    return split.permute(*axes, *range(len(axes), split.ndim)).reshape(x.shape)


def _along(axis: int, size: int, where: str) -> Iterator[Edit]:
    for parts in [n for n in range(2, size) if size % n == 0]:
        first = [place * size // parts + turn for turn in range(2) for place in range(parts)][:4]
        order = ", ".join(map(str, first)) + ", …" * (size > 4)
        says = f"takes the elements of {where} on axis {axis} in the order {order}"

        def regrouped(x: Any, parts: int = parts) -> Any:
            return x.unflatten(axis, (parts, -1)).transpose(axis - 1, axis).reshape(x.shape)

        yield _edit(says, regrouped)
    if size > 1:
        if size % 2 == 0:
            yield _edit(f"swaps the halves of {where} on axis {axis}", lambda x: x.roll(size // 2, axis))
        for by in (1, -1):
            yield _edit(f"shifts {where} by {by} on axis {axis}", operator.methodcaller("roll", by, axis), rank=3)
        yield _edit(f"reverses {where} on axis {axis}", lambda x: x.flip(axis), rank=3)


def _edit(says: str, change: Function, rank: int = 2) -> Edit:
    return edit_at((), "order", says, change, rank)


def masks(at: At, context: Context) -> Iterator[Edit]:
    for place, item in references(at.step):
        if is_mask(at.program.values[item.index]):
            hides = short(at.step).startswith("masked_fill")  # `masked_fill` hides a key where the mask is true
            is_causal = not _visible(at.program.values[item.index], hides).triu(1).any()
            for says, change in MASKS.items():
                words = says if is_causal or says != NOT_CAUSAL else TO_ALL
                yield edit_at((place,), "mask", words, functools.partial(_changed, change, hides), 1)


def is_mask(value: Any) -> bool:
    if value.ndim < 2 or value.shape[-1] < 2:
        return False
    return str(value.dtype) == "torch.bool" or (value.is_floating_point() and bool((value < EXACT_MASK_BELOW).any()))


def is_marks(value: np.ndarray, count: int = 1) -> bool:
    """Return whether a value of the port may be a mask: it has at most two different elements, and at least `count`."""
    return value.ndim > 1 and value.shape[-1] > 1 and count <= len(np.unique(value)) <= 2


def _visible(mask: Any, hides: bool) -> Any:
    if str(mask.dtype) == "torch.bool":
        return ~mask if hides else mask
    return mask > EXACT_MASK_BELOW


def _changed(change: Function, hides: bool, mask: Any) -> Any:
    """Return another mask. `change` maps a mask that is true at visible keys to the new mask."""
    is_shown = _visible(mask, hides)
    if str(mask.dtype) == "torch.bool":
        return change(is_shown) ^ hides
    return mask.where(is_shown, mask.new_zeros(())).masked_fill(~change(is_shown), float(mask.min()))


def _shifted(x: Any, by: int, at_edge: Any) -> Any:
    """Shift a mask by one key. The key at the edge becomes `at_edge`; without `at_edge`, this key does not change."""
    shifted, edge = x.roll(by, -1), 0 if by > 0 else -1
    shifted[..., edge] = x[..., edge] if at_edge is None else at_edge
    return shifted


def _earlier(x: Any) -> Any:
    return x.new_ones(x.shape).tril(x.shape[-1] - x.shape[-2])


MASKS_NOTHING, IGNORES_PADDING = "masks no key", "ignores padding in the mask"

NOT_CAUSAL = "shows later positions: the mask is not causal"

TO_ALL = "shows a key to all queries if the reference shows the key to one query"
"""The words for `NOT_CAUSAL` if the reference's mask shows later positions, too."""

MASKS: dict[str, Function] = {
    MASKS_NOTHING: lambda x: x | True,
    "has no window: it shows all earlier keys": lambda x: _earlier(x) & x.any(-2, keepdim=True),
    IGNORES_PADDING: lambda x: x | (_earlier(x) & ~x.any(-2, keepdim=True)),
    "masks later positions only": _earlier,
    NOT_CAUSAL: lambda x: x.any(-2, keepdim=True).expand_as(x),
    "shows earlier keys and keys without padding: it joins the two masks by `or`": (
        lambda x: _earlier(x) | x.any(-2, keepdim=True)
    ),
    "shows one later key": lambda x: x | _shifted(x, 1, None),
    "hides each query's last key": lambda x: x & _shifted(x, -1, False),
    "shows one more key before the window": lambda x: x | _shifted(x, -1, False),
    "hides the first key of the window": lambda x: x & _shifted(x, 1, True),
    "hides the keys that the reference shows": lambda x: ~x,
    "swaps queries and keys of the mask": lambda x: x.mT,
}
