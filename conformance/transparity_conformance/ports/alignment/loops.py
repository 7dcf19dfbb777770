"""Loops of a port over heads, rows or tokens, as if each were one operation on an array with one more axis."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.listening.operation import Operation


def without_loops(probe: Probe, operations: Sequence[Operation]) -> list[Operation]:
    """The operations of a call with those of a loop stacked: a head's of each head, a token's of each token.

    Only what is repeated as often as there are heads, rows or tokens is taken for a loop. Each turn may read what
    earlier turns have made by then, as a cache is read.
    """
    tokens = [value.shape for value in probe.inputs.values()]
    counts = {probe.config.num_heads, probe.config.key_value_heads, *(size for shape in tokens for size in shape)} - {1}
    result = list(operations)
    while True:
        groups = list(_groups(result, counts))
        if len(groups) == len(result):
            return result
        result = _stacked(result, groups)


def _stacked(operations: Sequence[Operation], groups: Sequence[Sequence[int]]) -> list[Operation]:
    """One operation for each group; its inputs are those of all of its members."""
    number = {index: new for new, group in enumerate(groups) for index in group}
    result = []
    for new, group in enumerate(groups):
        first = operations[group[0]]
        inputs = tuple(sorted({number[each] for index in group for each in operations[index].inputs} - {new}))
        value = first.value if len(group) == 1 else _stack([operations[index].value for index in group])
        arguments = first.arguments if len(group) == 1 else {}
        result.append(Operation(first.name, value, inputs, first.source, arguments))
    return result


def _stack(values: Sequence[np.ndarray]) -> np.ndarray:
    """The values on a new first axis; one that grows with every turn ends in zeros."""
    result = np.zeros((len(values), *(max(sizes) for sizes in zip(*(value.shape for value in values), strict=True))))
    for turn, value in enumerate(values):
        part: tuple[int | slice, ...] = (turn, *map(slice, value.shape))
        result[part] = value
    return result


def _groups(operations: Sequence[Operation], counts: Collection[int]) -> Iterator[tuple[int, ...]]:
    """The operations, those of a loop at the same place of its body together."""
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
    """The length of the body and the turns of a loop that begins here, that with the shortest body; (1, 1) for none.

    A body of one operation is none: the parts into which an array is split are heard as such.
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
    """Return whether every turn reads, of all turns, only what stands before it in the body."""
    for index in range(begin, begin + period * turns):
        at = (index - begin) % period
        if any(each >= begin and (each - begin) % period >= at for each in operations[index].inputs):
            return False
    return True
