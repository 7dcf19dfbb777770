"""Replace a port's loops over heads, rows or tokens by single operations with one more axis."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from transparity.taps import lengths_of
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.probes import Probe


def without_loops(probe: Probe, operations: Sequence[Operation]) -> list[Operation]:
    """Return the operations of a call, with the iterations of each loop over heads, rows or tokens stacked.

    A loop is code that repeats as often as there are heads, rows or tokens. An iteration may read results of earlier
    iterations, as from a cache.
    """
    rows, lengths = len(next(iter(probe.inputs.values()))), lengths_of(probe.config, probe.inputs)
    return stacked(operations, [(rows, length) for length in lengths.values()], {probe.config.num_heads})


def stacked(
    operations: Sequence[Operation], tokens: Collection[tuple[int, ...]], heads: Collection[int]
) -> list[Operation]:
    """Stack loops over tokens, whose shapes are (batch, length), and loops with one of these numbers of heads."""
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
    """Return one operation for each group, with the inputs of all its members.

    An operation outside all groups is replaced by its inputs.
    """
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
    """Stack the values on a new first axis; smaller values end in zeros."""
    result = np.zeros((len(values), *(max(sizes) for sizes in zip(*(value.shape for value in values), strict=True))))
    for turn, value in enumerate(values):
        part: tuple[int | slice, ...] = (turn, *map(slice, value.shape))
        result[part] = value
    return result


def _steps(operations: Sequence[Operation], lengths: Collection[int]) -> list[tuple[int, ...]]:
    """Group the operations of a port that is called with one token at a time; return an empty list for other ports.

    The calls may differ in how they read and write a cache.
    """
    keys = [_key(each) for each in operations]
    for key in dict.fromkeys(keys):
        begins = [index for index, each in enumerate(keys) if each == key]
        if len(begins) not in lengths:
            continue
        ends = [*begins[1:], min(len(keys), begins[-1] + begins[-1] - begins[-2])]
        at = {index: [index] for index in range(begins[0], ends[0])}
        for begin, end in zip(begins[1:], ends[1:], strict=True):
            matcher = difflib.SequenceMatcher(a=keys[begins[0] : ends[0]], b=keys[begin:end], autojunk=False)
            same = {
                begins[0] + each.a + i: begin + each.b + i
                for each in matcher.get_matching_blocks()
                for i in range(each.size)
            }
            at = {index: [*found, same[index]] for index, found in at.items() if index in same}
        return [
            *((i,) for i in range(begins[0])),
            *map(tuple, at.values()),
            *((i,) for i in range(ends[-1], len(keys))),
        ]
    return []


def _groups(operations: Sequence[Operation], counts: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Yield the groups of operations at the same place in a loop's body."""
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
    """Return the body length and the number of iterations of the loop that starts at `begin`; (1, 1) if none does.

    The loop with the shortest body counts. A body of one operation is not a loop: splitting an array records one
    operation for each part.
    """
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
    """Return whether all iterations have the same shapes, and read no results from later places of the body."""
    for index in range(begin, begin + period * turns):
        at = (index - begin) % period
        if operations[index].value.shape != operations[begin + at].value.shape:
            return False
        if any(each >= begin and (each - begin) % period >= at for each in operations[index].inputs):
            return False
    return True
