"""Edits of a mask that show or hide other keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from transparity.config import EXACT_MASK_BELOW
from transparity_conformance.against.edits.edit import At, Context, Edit, references, short
from transparity_conformance.listening.program import Change


def masks(at: At, context: Context) -> Iterator[Edit]:
    for place, item in references(at.step):
        if _is_mask(at.program.values[item.index]):
            for says, change in MASKS.items():
                yield Edit("mask", says, functools.partial(_showing, place=place, change=change), rank=1)


def _is_mask(value: Any) -> bool:
    if value.ndim < 2 or value.shape[-1] < 2:
        return False
    return str(value.dtype) == "torch.bool" or (value.is_floating_point() and bool((value < EXACT_MASK_BELOW).any()))


def _showing(at: At, place: int, change: Callable[[Any], Any]) -> Change:
    hides = short(at.step).startswith("masked_fill")  # `masked_fill` hides a key where the mask is true
    return at.with_argument(place, functools.partial(_changed, change=change, hides=hides))


def _changed(mask: Any, change: Callable[[Any], Any], hides: bool) -> Any:
    """Return a changed mask. A mask of numbers keeps its numbers where both masks show a key."""
    if str(mask.dtype) == "torch.bool":
        return ~change(~mask) if hides else change(mask)
    is_shown = mask > EXACT_MASK_BELOW
    return mask.where(is_shown, mask.new_zeros(())).masked_fill(~change(is_shown), float(mask.min()))


def _causal(x: Any) -> Any:
    return x.new_ones(x.shape).tril(x.shape[-1] - x.shape[-2])


def _shifted(x: Any, by: int, at_edge: Any) -> Any:
    """Shift a mask by one key. The key at the edge keeps its value, or gets the value `at_edge`."""
    shifted, edge = x.roll(by, -1), 0 if by > 0 else -1
    shifted[..., edge] = x[..., edge] if at_edge is None else at_edge
    return shifted


MASKS: dict[str, Callable[[Any], Any]] = {
    "masks no key": lambda x: x | True,
    "ignores padding in the mask": _causal,
    "shows later positions: the mask is not causal": lambda x: x.any(-2, keepdim=True).expand_as(x),
    "shows one later key": lambda x: x | _shifted(x, 1, None),
    "hides each query's last key": lambda x: x & _shifted(x, -1, False),
    "shows one more key before the window": lambda x: x | _shifted(x, -1, False),
    "hides the first key of the window": lambda x: x & _shifted(x, 1, True),
    "hides the keys that theirs shows": lambda x: ~x,
    "swaps queries and keys of the mask": lambda x: x.mT,
}
