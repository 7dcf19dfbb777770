"""Find taps between two faults, which no value identifies, by the flow of data or by the code of another layer.

A tap that is wrong, and whose next tap is computed wrongly too, equals nothing in the reference. But its neighbors are
known: it is the last value of its size that depends on the one and leads to the other.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from transparity_conformance.identify.alignment.found import Found, Matches
from transparity_conformance.matching.graph import ancestors
from transparity_conformance.matching.layout import Layout, layouts
from transparity_conformance.matching.recorded import Match

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.*)")


def between(found: Found, lost: Sequence[str]) -> Matches:
    """Return the `lost` taps that the flow of data identifies, nearest to known taps first."""
    known, port = found, found.port
    depends = {tap: found.flow.reached(tap, found.matches) for tap in found.matches}
    for tap in reversed(lost):
        made_from = {known.index(name) for name in found.matches if tap in depends[name]}
        shape = found.ours[tap].shape
        index = _last(known, tap, shape, made_from)
        if index is not None:
            fits = layouts(shape, port.values[index].shape, port.heads)
            inputs = [known.matches[name].layout for name in found.flow.inputs[tap] if name in known.matches]
            like = [layout for layout in inputs if layout.ours == shape]
            layout = _alike(fits, like[0]) if like else fits[0]
            known = known.adding({tap: _first_of_same(known, shape, Match(index, layout or fits[0]))})
    return known.without(found.matches).matches


def _last(known: Found, tap: str, shape: tuple[int, ...], made_from: set[int]) -> int | None:
    """Return the last value of this shape that is made from the known taps before `tap` and leads to all after it.

    A value that leads to each of them directly is preferred.
    """
    if not made_from and known.flow.inputs[tap]:
        return None
    flows, port = _frontiers(known), known.port
    every = [match.index for match in known.matches.values()]
    behind = _leading_to(known, every, every)
    ends = [known.index(name) for name in known.flow.outputs[tap] if name in known.matches]
    fitting = [
        index
        for index in reversed(port.by_size.get(math.prod(shape), []))
        if index in behind and flows[index] == made_from and all(port.leads_to(index, end) for end in ends)
        if layouts(shape, port.values[index].shape, port.heads)
    ]
    directly = [_leading_to(known, [end], every) for end in ends]
    return next((index for index in fitting if all(index in each for each in directly)), next(iter(fitting), None))


def _first_of_same(known: Found, shape: tuple[int, ...], match: Match) -> Match:
    """Return the operation that computed the numbers of `match`; later ones only move them."""
    port = known.port
    for index in port.inputs[match.index]:
        layout = _alike(layouts(shape, port.values[index].shape, port.heads), match.layout)
        if layout and np.array_equal(port.sketch(index), port.sketch(match.index)):
            return _first_of_same(known, shape, Match(index, layout))
    return match


def _alike(fits: Sequence[Layout], layout: Layout) -> Layout | None:
    """Return the least permuted layout that orders a head's features as `layout` does."""
    return next((fit for fit in fits if len(fit.ours) != 4 or fit.split == layout.split), None)


def _frontiers(known: Found) -> list[set[int]]:
    """Return, for each operation, the found taps that its value is made from; a found one counts as its own."""
    own = {match.index for match in known.matches.values()}
    flow: list[set[int]] = []
    for index, inputs in enumerate(known.port.inputs):
        flow.append({index} if index in own else set().union(*(flow[each] for each in inputs)))
    return flow


def _leading_to(known: Found, ends: Sequence[int], every: Sequence[int]) -> set[int]:
    """Return the operations that lead to an end without passing through one of `every`."""
    return ancestors(ends, known.port.inputs.__getitem__, set(every)) - set(ends)


def repeated(found: Found, lost: str) -> Match | None:
    """Return the match of the `lost` tap, given another layer's; None if the layers do not run the same code."""
    named, port = LAYER.fullmatch(lost), found.port
    if named is None:
        return None
    stack, layer, name = named[1], int(named[2]), named[3]
    known = {
        (int(each[2]), each[3]): match
        for tap, match in found.matches.items()
        if (each := LAYER.fullmatch(tap)) and each[1] == stack
    }
    layers = found.probe.config.stack_num_layers(stack)
    period = _period(port.keys, {at: match.index for at, match in known.items()}, layers)
    for other in range(layers) if period else ():
        match = known.get((other, name))
        index = match.index + (layer - other) * period if match else -1
        if match is None or not 0 <= index < len(port.keys):
            continue
        is_alike = port.keys[index] == port.keys[match.index]
        has_shape = port.values[index].shape == port.values[match.index].shape
        if is_alike and has_shape and found.admits(lost, index):
            return Match(index, match.layout)
    return None


def _period(keys: Sequence[object], known: Mapping[tuple[int, str], int], layers: int) -> int:
    """Return the number of operations per layer if all layers repeat the same operations; otherwise 0."""
    if layers < 2 or not known:
        return 0
    first, last = min(known.values()), max(known.values())
    by_layer = [[index for (layer, _), index in known.items() if layer == each] for each in range(layers)]
    longest = max(max(span) - min(span) for span in by_layer if span)
    same_tap = [pair for pair in itertools.combinations(known.items(), 2) if pair[0][0][1] == pair[1][0][1]]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    ids = np.array([numbers[key] for key in keys])
    for period in range(len(ids) // layers, longest, -1):
        differs = np.flatnonzero(ids[period:] != ids[:-period])
        for begin, end in itertools.pairwise([-1, *differs.tolist(), len(ids) - period]):
            covers = begin < first and last < end + period and end - begin > (layers - 1) * period
            if covers and all(j - i == (b - a) * period for ((a, _), i), ((b, _), j) in same_tap):
                return period
    return 0
