"""Caches of a fixed size: what a call computes in a buffer with more places than it has tokens, as of its tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.budgets import epsilon


def within_sequence(operations: Sequence[Operation], lengths: Collection[int]) -> list[Operation]:
    """The operations without the places of a buffer that the mask keeps every query from.

    A buffer is known by attention weights that are exactly 0 in all columns but as many as there are tokens. An axis of
    its size is cut to these columns wherever the rest is one number: keys that are not written yet, and their scores.
    """
    buffers: dict[int, np.ndarray] = {}
    for each in operations:
        size = each.value.shape[-1] if each.value.ndim > 2 else 0
        if size > min(lengths, default=size) and size not in buffers and size not in lengths:
            used = _columns_of_weights(each.value)
            if used is not None and used.sum() in lengths:
                buffers[size] = used
    if not buffers:
        return list(operations)
    return [dataclasses.replace(each, value=_cut(each.value, buffers)) for each in operations]


def _columns_of_weights(value: np.ndarray) -> np.ndarray | None:
    """The columns in which any weight is more than 0; None if the rows are no weights."""
    with np.errstate(invalid="ignore"):
        if value.size == 0 or not (value >= 0).all() or np.abs(value.sum(-1) - 1).max() > epsilon("float32") ** 0.5:
            return None
    used: np.ndarray = (value > 0).reshape(-1, value.shape[-1]).any(0)
    return used


def _cut(value: np.ndarray, buffers: dict[int, np.ndarray]) -> np.ndarray:
    for axis, size in enumerate(value.shape):
        if size in buffers:
            rest = value.compress(~buffers[size], axis)
            if rest.size and (rest == rest.flat[0]).all():
                value = value.compress(buffers[size], axis)
    return value
