"""Find the line of the port that computed the first wrong value of a segment (the operations between two taps)."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from transparity.taps import lengths_of
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.identify.alignment.found import flow_of
from transparity_conformance.identify.alignment.heard import AlignedCall
from transparity_conformance.identify.alignment.known_faults import intermediates, tables
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.forms import hides
from transparity_conformance.matching.graph import ancestors, leading_nowhere, readers_of
from transparity_conformance.matching.recorded import Recorded, is_near, largest, layouts
from transparity_conformance.matching.values import is_whole, same_numbers
from transparity_conformance.oracle.probes import Probe


def operation_of(
    probe: Probe, call: AlignedCall, where: str, error: float, budget: float, besides: Sequence[Hypothesis] = ()
) -> int:
    """Return the first operation that leads to the wrong tap `where`, but to no right value. Values that the reference
    computes, with or without the faults `besides`, are right. If all values are right, the port probably omits an
    operation: return the operation that reads a norm or an unchanged input."""
    operations, taps, numbers = call.operations, call.taps, call.numbers
    end = numbers[where]
    # Do not continue from masked scores, because their mask may be wrong.
    masked = {tap for tap, index in numbers.items() if hides(operations[index].value).any()}
    given = {tap: value for tap, value in taps.items() if tap != where and tap not in masked}
    masks = [hides(each) for each in intermediates(probe, given, [*probe.oracle.expected][-1]) if hides(each).any()]
    configs = (dataclasses.replace(probe.config, **each.fault.fields) for each in besides if each.fault.fields)
    every = [probe, *(dataclasses.replace(probe, config=config) for config in configs)]
    right = _Right(intermediates(probe, given, where, besides), every, masks, is_masked=not where.endswith(".scores"))
    scale = largest(taps[where]) or 1.0
    tolerance = math.sqrt(budget * min(scale, error if np.isfinite(error) else scale)) / scale
    known = {index for tap, index in numbers.items() if tap not in masked}
    wrong = min(_wrong(operations, end, known, right, tolerance), default=None)
    if wrong is not None:
        return wrong if operations[wrong].stack else end
    others = {tap: operations[numbers[tap]].value for tap in taps if tap in numbers and tap != where}
    same = {tap for tap, value in others.items() if same_numbers(value, operations[end].value)}
    is_use = where.endswith("_norm") or (same and same & flow_of(probe).inputs[where])
    return _use_of(operations, end)[1] if is_use else end


def maker(probe: Probe, call: AlignedCall, index: int, *, has_wrong_rows: bool) -> Operation:
    """Return the operation `index`. If its mask or its row numbers are wrong, return the earlier operation that makes
    them."""
    operation = call.operations[index]
    is_masked, is_lookup = hides(operation.value).any(), has_wrong_rows and not operation.inputs
    if not (is_masked or is_lookup):
        return operation
    try:
        operations = call.with_whole_numbers()
    except PortError:  # the line is then less exact
        return operation
    same = (i for i, each in enumerate(operations) if each.stack == operation.stack and each.name == operation.name)
    first = next((i for i in same if np.array_equal(operations[i].value, operation.value, equal_nan=True)), None)
    if first is None:
        return operation
    return operations[_maker_of_rows(operations, first) if is_lookup else _maker(operations, first, _masks(probe))]


def _masks(probe: Probe) -> list[np.ndarray]:
    masks = [hides(each) for each in intermediates(probe, {}, [*probe.oracle.expected][-1]) if hides(each).any()]
    sizes = {each.sliding_window for each in probe.config.layer_kinds.values() if each.sliding_window}
    for length in lengths_of(probe.config, probe.inputs).values():
        behind = np.arange(length)[:, None] - np.arange(length)
        chunks = [np.arange(length) // size for size in sizes]
        masks += [behind >= 0, *(behind < size for size in sizes), *(abs(behind) < size for size in sizes)]
        masks += [each[:, None] == each for each in chunks]
    tokens = [each[:, None] for each in probe.inputs.values() if each.ndim == 2 and each.dtype.kind in "iub"]
    return masks + [each != absent for each in tokens for absent in (0, probe.config.pad_id)]


def _maker_of_rows(operations: Sequence[Operation], index: int) -> int:
    """Return the operation that computes the row numbers of a lookup; skip operations that only rearrange numbers."""
    rows = operations[index].inputs
    while len(rows) == 1:
        index, rows = rows[0], operations[rows[0]].inputs
        if len(rows) != 1 or not same_numbers(operations[index].value, operations[rows[0]].value):
            break
    return index


def _maker(operations: Sequence[Operation], index: int, masks: Sequence[np.ndarray]) -> int:
    given = {each: operations[each].value for each in operations[index].inputs}
    two = {each: value == value.max() for each, value in given.items() if value.size and len(np.unique(value)) == 2}
    wrong = [each for each, value in two.items() if not any(_is_alike(value, mask) for mask in masks)]
    return _maker(operations, wrong[0], masks) if len(wrong) == 1 else index


def _is_alike(value: np.ndarray, mask: np.ndarray) -> bool:
    """Return whether each (queries, keys) matrix of an array equals one of `mask` or its negation."""
    if value.ndim < 2 or value.shape[-2:] != mask.shape[-2:]:
        return False
    rows = {(row == sign).tobytes() for row in mask.reshape(-1, *mask.shape[-2:]) for sign in (True, False)}
    return {row.tobytes() for row in value.reshape(-1, *value.shape[-2:])} <= rows


def at_omission(probe: Probe, call: AlignedCall, where: str) -> Operation:
    """Return the operation before an omitted operation, or the operation after it. The returned stack starts in the
    function that calls both."""
    alike, use = _use_of(call.operations, call.numbers[where])
    before, after = call.operations[alike[0]], call.operations[use]
    pairs = zip(reversed(before.stack), reversed(after.stack), strict=False)
    common = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    outer = after.stack[len(after.stack) - common :]
    direct = [each for each in map(call.operations.__getitem__, alike) if each.stack[1:] == outer]
    before = direct[-1] if direct else before
    flow = flow_of(probe)
    has_others = all(flow.outputs[tap] - {where} for tap in flow.inputs[where])
    operation = after if has_others or (after.stack[1:] == outer and not direct) else before
    return dataclasses.replace(operation, stack=operation.stack[max(len(operation.stack) - common - 1, 0) :])


def _use_of(operations: Sequence[Operation], end: int) -> tuple[list[int], int]:
    same = [end]
    for index in range(end + 1, len(operations)):
        inputs = operations[index].inputs
        if not set(same).isdisjoint(inputs):
            value, given = operations[index].value, [operations[each].value for each in inputs]
            if not any(same_numbers(value, each) for each in given) and not _selects(operations[index], given):
                return same, index if operations[index].stack else same[-1]
            same.append(index)
    return same, same[-1]


def _wrong(operations: Sequence[Operation], end: int, known: set[int], right: _Right, tolerance: float) -> set[int]:
    segment = segment_of(operations, end, known - {end})
    flows: set[int] = set()  # operations that depend on a tap; other operations compute angles or masks
    for index in segment:
        if any(each in known or each in flows for each in operations[index].inputs):
            flows.add(index)
    is_right: dict[int, bool] = {}
    for index in segment:
        given = [operations[each].value for each in operations[index].inputs if is_right.get(each, True)]
        is_right[index] = _selects(operations[index], given) or right.has(
            operations[index].value, tolerance, is_table=index not in flows
        )
    readers = readers_of([each.inputs for each in operations[: end + 1]])
    return leading_nowhere(segment, is_right.__getitem__, lambda index: readers.get(index, ()))


def segment_of(operations: Sequence[Operation], end: int, known: Collection[int]) -> list[int]:
    return sorted(ancestors([end], lambda index: operations[index].inputs, known))


def behind_taps(
    operations: Sequence[Operation], numbers: Mapping[str, int], taps: Collection[str]
) -> Iterator[Operation]:
    known = set(numbers.values())
    for index in {each for tap in taps for each in segment_of(operations, numbers[tap], known - {numbers[tap]})}:
        yield operations[index]


def _selects(operation: Operation, given: Sequence[np.ndarray]) -> bool:
    value, grows = operation.value, operation.grows
    is_part = len(operation.inputs) == len(given) == 1 and value.size < given[0].size
    if not given or not (grows or is_part):
        return False
    taken = value[value != 0] if grows else value
    return _all_in(np.sort(taken, axis=None), np.unique(np.concatenate([each.ravel() for each in given])), 0.0)


class _Right:
    def __init__(
        self, values: Sequence[np.ndarray], probes: Sequence[Probe], masks: Sequence[np.ndarray], is_masked: bool = True
    ) -> None:
        self.masks, self.is_masked = masks, is_masked
        """`is_masked` is false for scores, which the reference computes before the mask."""
        self.tables = [np.unique(each) for probe in probes for each in tables(probe)]
        self.ours = Recorded([Operation("", each, (), ()) for each in values], np.empty(0), probes[0].config.num_heads)

    def has(self, value: np.ndarray, tolerance: float, *, is_table: bool) -> bool:
        """Return whether a value is right, up to `tolerance`. A table is right if it is constant, has only integers, or
        has only elements of the reference's tables."""
        sketch = _sketch(value)
        allowed = tolerance * (largest(sketch) or 1.0)
        if is_table and self._is_table(sketch if self.is_masked else sketch[~hides(sketch)], allowed):
            return True
        if hides(value).any():
            return self._has_masked(value, allowed)
        ours, same_size = self.ours, self.ours.by_size.get(value.size, ())
        same = [ours.values[index] for index in same_size if is_near(ours.sketch(index), sketch, allowed)]
        ways = ((each, layouts(each.shape, value.shape, ours.heads)) for each in same)  # compare positions, too
        return any(not fits or any(is_near(each, fit.to_ours(value), allowed) for fit in fits) for each, fits in ways)

    def _is_table(self, sketch: np.ndarray, allowed: float) -> bool:
        is_plain = is_whole(sketch) or sketch[0] == sketch[-1]
        return bool(is_plain) or any(_all_in(sketch, each, allowed) for each in self.tables)

    def _has_masked(self, value: np.ndarray, allowed: float) -> bool:
        """Return whether a value has the same masked elements as some mask of the reference, and right scores
        elsewhere."""
        same_size = [self.ours.values[index] for index in self.ours.by_size.get(value.size, ())]
        ways = [
            (ours, way.to_ours(value))
            for ours in same_size
            for way in layouts(ours.shape, value.shape, self.ours.heads)
        ]
        shown = ((ours, theirs, ~hides(theirs)) for ours, theirs in ways)
        masked = (each for each in shown if any(np.array_equal(mask, ~each[2]) for mask in self.masks))
        return any(is_near(ours[visible], theirs[visible], allowed) for ours, theirs, visible in masked)


def _sketch(value: np.ndarray) -> np.ndarray:
    return np.sort(np.where(hides(value), -np.inf, value), axis=None)


def _all_in(values: np.ndarray, table: np.ndarray, allowed: float) -> bool:
    """Return whether each sorted value is within `allowed` of a number in the sorted `table`."""
    if not table.size:
        return False
    behind = np.searchsorted(table, values).clip(1, max(table.size - 1, 1)) if table.size > 1 else np.zeros(1, int)
    around = np.stack([table[behind % table.size], table[behind - 1]])
    with np.errstate(invalid="ignore"):  # −∞ − (−∞) is NaN
        near = (around == values) | (np.abs(around - values) <= allowed)
    return bool(near.any(0).all())
