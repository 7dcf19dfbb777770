"""The line of the port in which the first wrong number of a segment was made."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.alignment.forms.loops import GROWS
from transparity_conformance.ports.alignment.intermediate import intermediates
from transparity_conformance.ports.alignment.layout import layouts
from transparity_conformance.ports.listening.operation import Operation, Source


def operation_of(
    probe: Probe,
    operations: Sequence[Operation],
    taps: Arrays,
    numbers: Mapping[str, int],
    where: str,
    error: float,
    budget: float,
) -> int:
    """Find the first operation that leads to the wrong tap `where` and to nothing right; the tap's own without a line.

    A number is right if the reference computes it, too, on its way from the port's own activations to this tap.

    Args:
        operations: everything that the port computed.
        taps: its activations.
        numbers: the operation that computed each of them.
        error, budget: of the segment; a number is wrong if it is further off than rounding, next to the error.
    """
    end = numbers[where]
    segment = _segment(operations, end, {number for tap, number in numbers.items() if tap != where})
    right = _Right(intermediates(probe, {tap: value for tap, value in taps.items() if tap != where}, where))
    largest = float(np.abs(taps[where]).max(initial=0.0)) or 1.0
    tolerance = math.sqrt(budget * min(error, largest)) / largest
    flows = _flows(operations, segment, set(numbers.values()))
    is_right: dict[int, bool] = {}
    for index in segment:
        selects = any(each not in is_right or is_right[each] for each in operations[index].inputs)
        is_right[index] = (selects and _selects(operations, index)) or right.has(
            operations[index].value, tolerance, is_table=index not in flows
        )
    leads_to_right = dict.fromkeys(segment, False)
    for index in reversed(segment):
        for made_from in operations[index].inputs:
            if made_from in leads_to_right:
                leads_to_right[made_from] |= is_right[index] or leads_to_right[index]
    wrong = [index for index in segment if not is_right[index] and not leads_to_right[index]]
    first = min(wrong, default=end)
    return first if operations[first].source else end


def told_apart(
    operations: Sequence[Operation], index: int, numbers: Mapping[str, int], wrong: Collection[str]
) -> Source | None:
    """The line of a wrong operation; if the same line is right elsewhere, the innermost caller that it has here alone.

    Args:
        numbers: the operation of each tap.
        wrong: the taps at the ends of all wrong segments.
    """
    source = operations[index].source
    known = set(numbers.values())
    ends = [numbers[tap] for tap in wrong if tap in numbers]
    faulty = {each for end in ends for each in _segment(operations, end, known - {end})}
    right = [each.source for i, each in enumerate(operations) if i not in faulty and each.source == source]
    if source is None or not right:
        return source
    elsewhere = {caller for each in right if each is not None for caller in each.callers}
    return next((caller for caller in source.callers if caller not in elsewhere), source)


def _selects(operations: Sequence[Operation], index: int) -> bool:
    """Return whether an operation computes nothing, but takes a part of the only value that it is given, or, turn by
    turn, ever more of it."""
    value, inputs = operations[index].value, operations[index].inputs
    grows = GROWS in operations[index].arguments
    if len(inputs) != 1 or (value.size >= operations[inputs[0]].value.size and not grows):
        return False
    taken = value[value != 0] if grows else value
    return _all_in(np.sort(taken, axis=None), np.unique(operations[inputs[0]].value), 0.0)


def _segment(operations: Sequence[Operation], end: int, known: set[int]) -> list[int]:
    """The operations from which `end` is made without passing through a known one, in order, `end` included."""
    reached, waiting = {end}, list(operations[end].inputs)
    while waiting:
        index = waiting.pop()
        if index not in reached and index not in known:
            reached.add(index)
            waiting += operations[index].inputs
    return sorted(reached)


def _flows(operations: Sequence[Operation], segment: Sequence[int], known: set[int]) -> set[int]:
    """The operations of a segment that depend on a tap; the others build tables, of angles or masks."""
    flows: set[int] = set()
    for index in segment:
        if any(each in known or each in flows for each in operations[index].inputs):
            flows.add(index)
    return flows


class _Right:
    """The numbers that are right, whatever their order."""

    def __init__(self, values: Sequence[np.ndarray]) -> None:
        self.by_size: dict[int, list[np.ndarray]] = {}
        for value in values:
            self.by_size.setdefault(value.size, []).append(value)
        self.sketches: dict[int, list[np.ndarray]] = {}

    def has(self, value: np.ndarray, tolerance: float, *, is_table: bool) -> bool:
        """Return whether these numbers are right to `tolerance` of the largest; of a table, each by itself."""
        sketch = np.sort(value, axis=None)
        allowed = tolerance * (float(np.abs(sketch).max(initial=0.0)) or 1.0)
        if is_table:
            return any(_all_in(sketch, each, allowed) for each in self._tables)
        same_size = self.by_size.get(value.size, [])
        if value.size not in self.sketches:
            self.sketches[value.size] = [np.sort(each, axis=None) for each in same_size]
        near = (bool(np.all(np.abs(each - sketch) <= allowed)) for each in self.sketches[value.size])
        return any(is_near and _repeats(each, value, allowed) for is_near, each in zip(near, same_size, strict=True))

    @functools.cached_property
    def _tables(self) -> list[np.ndarray]:
        return [np.unique(each) for some in self.by_size.values() for each in some]


def _repeats(ours: np.ndarray, value: np.ndarray, allowed: float) -> bool:
    """Return whether heads that repeat others in `ours` do so in `value`, too: those that are repeated in turn have the
    same numbers."""
    heads = ours.shape[1] if ours.ndim == 4 else 1
    for times in (each for each in range(heads, 1, -1) if heads % each == 0):
        groups = ours.reshape(len(ours), heads // times, times, *ours.shape[2:])
        if np.array_equal(groups, np.broadcast_to(groups[:, :, :1], groups.shape)):
            fits = layouts(groups.shape, value.shape, 1)
            read = (each.to_ours(value) for each in fits if each.order.index(1) < each.order.index(2))
            return any(bool(np.all(np.abs(each - groups) <= allowed)) for each in read)
    return True


def _all_in(values: np.ndarray, table: np.ndarray, allowed: float) -> bool:
    """Return whether every one of the sorted `values` is in the sorted `table`, however often."""
    if not table.size:
        return False
    behind = np.searchsorted(table, values).clip(1, max(table.size - 1, 1)) if table.size > 1 else np.zeros(1, int)
    near = np.minimum(np.abs(table[behind % table.size] - values), np.abs(table[behind - 1] - values))
    return bool(np.all(near <= allowed))
