"""Taps between two faults, which no value tells: found by the flow of data alone.

A tap that is wrong itself, and whose next tap is made wrongly from it, equals nothing in the reference. But what it is
made from and what is made from it are known: it is the last value of its size that depends on the one and leads to the
other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.flow import Flow
from transparity_conformance.identify.alignment.values.candidates import Match, PortValues
from transparity_conformance.identify.alignment.values.layout import Layout, layouts
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe


def between(
    probe: Probe, values: Arrays, candidates: PortValues, found: Mapping[str, Match], lost: Sequence[str], flow: Flow
) -> dict[str, Match]:
    """The `lost` taps that the flow of data tells, those nearest to what follows first.

    Args:
        values: the port's values at the taps that were `found`.
    """
    known = dict(found)
    ours = walk(probe, values)
    depends = {tap: flow.reached(tap, found) for tap in found}
    for tap in reversed(lost):
        made_from = {known[name].index for name in found if tap in depends[name]}
        index = _last(candidates, known, ours[tap].shape, made_from, flow, tap)
        if index is not None:
            fits = layouts(ours[tap].shape, candidates.values[index].shape, candidates.heads)
            inputs = [known[name].layout for name in flow.inputs[tap] if name in known]
            like = [layout for layout in inputs if layout.ours == ours[tap].shape]
            layout = _alike(fits, like[0]) if like else fits[0]
            known[tap] = _first_of_same(ours[tap].shape, candidates, Match(index, layout or fits[0]))
    return {tap: match for tap, match in known.items() if tap not in found}


def _last(
    candidates: PortValues,
    known: Mapping[str, Match],
    shape: tuple[int, ...],
    made_from: set[int],
    flow: Flow,
    tap: str,
) -> int | None:
    """The last value with a layout of this shape that is made from the taps before `tap` and leads to those behind it,
    to each without passing through another one if there is such a value."""
    if not made_from and flow.inputs[tap]:
        return None
    flows = frontiers(candidates, known)
    every = [match.index for match in known.values()]
    behind = _leading_to(candidates, every, every)
    ends = [known[name].index for name in flow.outputs[tap] if name in known]
    fitting = [
        index
        for index in reversed(candidates.by_size.get(math.prod(shape), []))
        if index in behind and flows[index] == made_from and all(candidates.leads_to(index, end) for end in ends)
        if layouts(shape, candidates.values[index].shape, candidates.heads)
    ]
    directly = [_leading_to(candidates, [end], every) for end in ends]
    return next((index for index in fitting if all(index in each for each in directly)), next(iter(fitting), None))


def _first_of_same(shape: tuple[int, ...], candidates: PortValues, match: Match) -> Match:
    """The operation that computed the numbers of `match`, which later ones only move."""
    for index in candidates.inputs[match.index]:
        fits = layouts(shape, candidates.values[index].shape, candidates.heads)
        layout = _alike(fits, match.layout)
        if layout and np.array_equal(candidates.sketch(index), candidates.sketch(match.index)):
            return _first_of_same(shape, candidates, Match(index, layout))
    return match


def _alike(fits: Sequence[Layout], layout: Layout) -> Layout | None:
    """The least permuted layout in which a head's features have the order that they have in another."""
    return next((fit for fit in fits if len(fit.ours) != 4 or fit.split == layout.split), None)


def frontiers(candidates: PortValues, found: Mapping[str, Match]) -> list[set[int]]:
    """For each operation, the operations of the found taps that its value is made from; of a found one, itself."""
    known = {match.index for match in found.values()}
    flow: list[set[int]] = []
    for index, inputs in enumerate(candidates.inputs):
        flow.append({index} if index in known else set().union(*(flow[each] for each in inputs)))
    return flow


def _leading_to(candidates: PortValues, ends: Sequence[int], known: Sequence[int]) -> set[int]:
    """The operations from which an end is made without passing through a known one, themselves not known."""
    reached: set[int] = set()
    waiting = [each for index in ends for each in candidates.inputs[index]]
    while waiting:
        index = waiting.pop()
        if index not in reached and index not in known:
            reached.add(index)
            waiting += candidates.inputs[index]
    return reached
