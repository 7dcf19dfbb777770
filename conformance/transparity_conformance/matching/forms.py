"""Undo loops, repeated heads, masked scores and preallocated buffers in a port's recorded values."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity.taps import lengths_of
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.graph import ancestors, common
from transparity_conformance.oracle.budgets import epsilon
from transparity_conformance.oracle.probes import Probe


def without_loops(probe: Probe, operations: Sequence[Operation]) -> list[Operation]:
    """Stack the iterations of loops, which are code that runs once for each head, row or token of the probe."""
    rows, lengths = len(next(iter(probe.inputs.values()))), lengths_of(probe.config, probe.inputs)
    return stacked(operations, [(rows, length) for length in lengths.values()], {probe.config.num_heads})


def stacked(
    operations: Sequence[Operation], tokens: Collection[tuple[int, ...]], heads: Collection[int]
) -> list[Operation]:
    """Stack the iterations of loops over `tokens` (batch and length of each input) or over numbers of `heads`."""
    counts = {*heads, *(size for shape in tokens for size in shape)} - {1}
    result = list(operations)
    steps = _steps(result, {length for _, length in tokens} - {1})
    if steps:
        result = _stacked(result, steps)
    while True:
        groups = list(_groups(result, counts))
        if len(groups) == len(result):
            return result
        result = _stacked(result, groups)


def _stacked(operations: Sequence[Operation], groups: Sequence[Sequence[int]]) -> list[Operation]:
    numbers: dict[int, frozenset[int]] = {}
    group_of = {index: new for new, group in enumerate(groups) for index in group}
    for index, operation in enumerate(operations):
        through = frozenset().union(*(numbers[each] for each in operation.inputs))
        numbers[index] = frozenset([group_of[index]]) if index in group_of else through
    result = []
    for new, group in enumerate(groups):
        first = operations[group[0]]
        inputs = {
            each for index in group for given in operations[index].inputs for each in numbers[given] if each < new
        }
        values = [operations[index].value for index in group]
        grows = len({value.shape for value in values}) > 1
        if len(group) > 1:
            first = Operation(first.name, _stack(values), (), first.stack, grows)
        result.append(dataclasses.replace(first, inputs=tuple(sorted(inputs))))
    return result


def _stack(values: Sequence[np.ndarray]) -> np.ndarray:
    result = np.zeros((len(values), *(max(sizes) for sizes in zip(*(value.shape for value in values), strict=True))))
    for turn, value in enumerate(values):
        part: tuple[int | slice, ...] = (turn, *map(slice, value.shape))
        result[part] = value
    return result


def _steps(operations: Sequence[Operation], lengths: Collection[int]) -> list[tuple[int, ...]]:
    """If a port runs token by token, group the repetitions of each operation; otherwise return []."""
    keys = [_key(each) for each in operations]
    for key in dict.fromkeys(keys):
        begins = [index for index, each in enumerate(keys) if each == key]
        if len(begins) not in lengths:
            continue
        ends = [*begins[1:], min(len(keys), begins[-1] + begins[-1] - begins[-2])]
        at = {index: [index] for index in range(begins[0], ends[0])}
        for begin, end in zip(begins[1:], ends[1:], strict=True):
            same = {begins[0] + a: begin + b for a, b in common(keys[begins[0] : ends[0]], keys[begin:end])}
            at = {index: [*found, same[index]] for index, found in at.items() if index in same}
        return [
            *((i,) for i in range(begins[0])),
            *map(tuple, at.values()),
            *((i,) for i in range(ends[-1], len(keys))),
        ]
    return []


def _groups(operations: Sequence[Operation], counts: Collection[int]) -> Iterator[tuple[int, ...]]:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(map(_key, operations)))}
    ids = np.array([numbers[_key(each)] for each in operations])
    begin = 0
    while begin < len(ids):
        period, turns = _loop_at(operations, ids, begin, counts)
        yield from (tuple(begin + turn * period + at for turn in range(turns)) for at in range(period))
        begin += period * turns


def _key(operation: Operation) -> tuple[object, ...]:
    return operation.name, operation.source, operation.value.ndim


def _loop_at(operations: Sequence[Operation], ids: np.ndarray, begin: int, counts: Collection[int]) -> tuple[int, int]:
    """Return (length of the body, iterations) of the shortest loop at `begin`, or (1, 1) without a loop. A single
    repeated operation is no loop, because splitting an array also repeats an operation."""
    rest = ids[begin:]
    for period in np.flatnonzero(rest[: len(rest) // 2 + 1] == rest[0])[1:].tolist():
        if period == 1 or rest[1] != rest[period + 1]:
            continue
        differs = np.flatnonzero(rest[period:] != rest[:-period])
        repeats = (int(differs[0]) if len(differs) else len(rest) - period) // period + 1
        fitting = sorted(count for count in counts if repeats % count == 0)
        if fitting and _is_loop(operations, begin, period, turns := fitting[-1]):
            return period, turns
    return 1, 1


def _is_loop(operations: Sequence[Operation], begin: int, period: int, turns: int) -> bool:
    """Return whether iterations have equal shapes, and read only values of earlier steps or from before the loop."""
    for index in range(begin, begin + period * turns):
        at = (index - begin) % period
        if operations[index].value.shape != operations[begin + at].value.shape:
            return False
        if any(each >= begin and (each - begin) % period >= at for each in operations[index].inputs):
            return False
    return True


def unrepeated(value: np.ndarray, heads: int, shared: int) -> np.ndarray:
    """If an axis repeats `shared` heads up to `heads`, keep each head only once."""
    if shared == heads or not value.size or value.min() == value.max():  # repeating a constant has no effect
        return value
    for axis in [axis for axis, size in enumerate(value.shape) if size == heads]:
        grouped = value.reshape(*value.shape[:axis], shared, heads // shared, *value.shape[axis + 1 :])
        first = grouped.take(0, axis + 1)
        if np.array_equal(grouped, np.expand_dims(first, axis + 1).repeat(heads // shared, axis + 1)):
            return first
    return value


def unmasked(operations: Sequence[Operation], index: int) -> np.ndarray:
    """Return scores, with each masked score replaced by the (possibly scaled or biased) score before the mask."""
    value, before = operations[index].value, _scores_before(operations, index)
    if before is None:
        return value
    scores, hidden = operations[before].value, hides(value)
    multiple = _multiple(scores, value, ~hidden)
    replaced = _biased(operations, index, before) if multiple is None else multiple * scores
    return value if replaced is None else np.where(hidden, replaced, value)


def with_biases(operations: Sequence[Operation]) -> list[Operation]:
    """Remove the mask from scores to which the port adds a position bias together with the mask."""
    found = list(operations)
    for index, each in enumerate(operations):
        before = _scores_before(operations, index)
        if before is not None and _multiple(operations[before].value, each.value, ~hides(each.value)) is None:
            found[index] = dataclasses.replace(each, value=unmasked(operations, index))
    return found


def hides(scores: np.ndarray) -> np.ndarray:
    return np.asarray(scores < EXACT_MASK_BELOW)


def _scores_before(operations: Sequence[Operation], index: int) -> int | None:
    value = operations[index].value
    hidden = hides(value)
    waiting = list(operations[index].inputs) if hidden.any() and not hidden.all() else []
    seen: set[int] = set()
    while waiting:
        before = waiting.pop()
        earlier = operations[before]
        if before not in seen and earlier.value.shape == value.shape:
            if _hides_none(earlier.value):
                return before
            waiting += earlier.inputs
        seen.add(before)
    return None


def _biased(operations: Sequence[Operation], index: int, before: int) -> np.ndarray | None:
    """Return the scores `before` plus the position bias that the port adds together with the mask; None without a
    bias."""
    value, scores = operations[index].value, operations[before].value
    seen = ~hides(value)
    added, tolerance = value[seen] - scores[seen], epsilon("float32") ** 0.5 * float(np.abs(value[seen]).max())
    for each in sorted(ancestors([index], lambda one: operations[one].inputs, known={before}), reverse=True):
        with contextlib.suppress(ValueError):  # the value has another shape
            bias = np.broadcast_to(operations[each].value, value.shape)
            if _hides_none(bias) and (np.abs(bias[seen] - added) <= tolerance).all():
                return np.asarray(scores + bias)
    return None


def _hides_none(value: np.ndarray) -> bool:
    return bool(np.isfinite(value).all() and (value >= EXACT_MASK_BELOW).all())


def _multiple(unmasked: np.ndarray, value: np.ndarray, seen: np.ndarray) -> float | None:
    one, other = unmasked[seen], value[seen]
    multiple = float(one @ other / (one @ one)) if one.any() else 1.0
    tolerance = epsilon("float32") ** 0.5 * float(np.abs(other).max())
    return multiple if bool(np.all(np.abs(multiple * one - other) <= tolerance)) else None


def within_sequence(operations: Sequence[Operation], lengths: Collection[int]) -> list[Operation]:
    """Remove the unused positions of preallocated buffers, whose keys have the weight 0 in every row."""
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
    """Return a mask of the keys with a positive weight in some row; None if rows do not sum to 1."""
    with np.errstate(invalid="ignore"):
        if value.size == 0 or not (value >= 0).all() or np.abs(value.sum(-1) - 1).max() > epsilon("float32") ** 0.5:
            return None
    return np.asarray((value > 0).reshape(-1, value.shape[-1]).any(0))


def _cut(value: np.ndarray, buffers: dict[int, np.ndarray]) -> np.ndarray:
    for axis, size in enumerate(value.shape):
        if size in buffers:
            rest = value.compress(~buffers[size], axis)
            if rest.size and (rest == rest.flat[0]).all():
                value = value.compress(buffers[size], axis)
    return value
