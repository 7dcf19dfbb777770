"""Find taps by the data flow: taps between two faults, and queries and keys whose features have another order."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from transparity_conformance.identify.alignment.found import Found, Matches
from transparity_conformance.identify.alignment.known_faults import behind_faults
from transparity_conformance.matching.graph import ancestors
from transparity_conformance.matching.recorded import Layout, Match, Recorded, layouts


def between(found: Found, lost: Sequence[str]) -> Matches:
    """Match the `lost` taps by the data flow, last tap first. Prefer operations from which the reference computes the
    port's next known taps."""
    known, port, possible = found, found.port, dict[str, list[Match]]()
    depends = {tap: found.flow.reached(tap, found.matches) for tap in found.matches}
    for tap in reversed(lost):
        made_from = {known.index(name) for name in found.matches if tap in depends[name]}
        shape = found.ours[tap].shape
        for index in _fitting(known, tap, shape, made_from):
            fits = layouts(shape, port.values[index].shape, port.heads)
            inputs = [known.matches[name].layout for name in found.flow.inputs[tap] if name in known.matches]
            like = [layout for layout in inputs if layout.ours == shape]
            layout = _alike(fits, like[0]) if like else fits[0]
            match = _first_of_same(known, shape, Match(index, layout or fits[0]))
            if all(match.index != each.index for each in possible.setdefault(tap, [])):
                possible[tap].append(match)
        known = known.adding({tap: matches[0] for tap, matches in possible.items()})
    confirmed = {} if found.probe.is_large else _confirmed(found, possible)  # a run of a large model takes long
    return {tap: known.matches[tap] for tap in possible} | confirmed


def _confirmed(found: Found, possible: Mapping[str, Sequence[Match]]) -> dict[str, Match]:
    """Choose the operations from which the reference computes the port's next known taps."""
    ends = {tap: frozenset(found.flow.reached(tap, found.matches) & found.matches.keys()) for tap in possible}
    confirmed: dict[str, Match] = {}
    for end in dict.fromkeys(ends.values()):
        taps = [tap for tap in possible if end and ends[tap] == end]
        tried = itertools.product(*(possible[tap] for tap in taps)) if taps else iter(())
        for matches in itertools.islice(tried, 16):  # limits the runs of the reference
            chosen = dict(zip(taps, matches, strict=True))
            after = found.adding(chosen)
            if all(found.port.agree(found.values[tap], after.ours[tap]) for tap in end):
                confirmed |= chosen
                break
    return confirmed


def _fitting(known: Found, tap: str, shape: tuple[int, ...], made_from: set[int]) -> list[int]:
    """Return values of the given shape between the taps before and after `tap`, the most likely first."""
    if not made_from and known.flow.inputs[tap]:
        return []
    port, every = known.port, [match.index for match in known.matches.values()]
    own, flows = set(every), list[set[int]]()  # for each operation, the matches on which it depends directly
    for index, inputs in enumerate(port.inputs):
        flows.append({index} if index in own else set().union(*(flows[each] for each in inputs)))
    behind = _leading_to(known, every, every)
    ends = [known.index(name) for name in known.flow.outputs[tap] if name in known.matches]
    fitting = [
        index
        for index in reversed(port.by_size.get(math.prod(shape), []))
        if index in behind and flows[index] == made_from and all(port.leads_to(index, end) for end in ends)
        if layouts(shape, port.values[index].shape, port.heads)
    ]
    directly = [_leading_to(known, [end], every) for end in ends]
    return sorted(fitting, key=lambda index: not all(index in each for each in directly))


def _first_of_same(known: Found, shape: tuple[int, ...], match: Match) -> Match:
    port = known.port
    for index in port.inputs[match.index]:
        layout = _alike(layouts(shape, port.values[index].shape, port.heads), match.layout)
        if layout and np.array_equal(port.sketch(index), port.sketch(match.index)):
            return _first_of_same(known, shape, Match(index, layout))
    return match


def _alike(fits: Sequence[Layout], layout: Layout) -> Layout | None:
    return next((fit for fit in fits if len(fit.ours) != 4 or fit.split == layout.split), None)


def _leading_to(known: Found, ends: Sequence[int], every: Sequence[int]) -> set[int]:
    return ancestors(ends, known.port.inputs.__getitem__, set(every)) - set(ends)


def further_on(found: Found, lost: str) -> Matches:
    """Return later matches for the inputs of `lost`, with which the reference computes a value of the port at `lost`. A
    port may apply a second norm to queries and keys, for example."""
    further: dict[str, list[Match]] = {}
    for tap in found.flow.inputs[lost] & found.matches.keys():
        others = found.without([tap])
        faulty, early = behind_faults(others, tap, of_weights=False), found.index(tap)
        later = [match for match in faulty.values() if found.port.leads_to(early, match.index)]
        if chosen := others.most_gaining(tap, later, found.ours):
            return {tap: chosen}
        further[tap] = [match for match in later if match.index != early]
    for one, other in itertools.combinations(sorted(further), 2):
        for matches in itertools.product(further[one], further[other]):
            found.clock.check()
            both = dict(zip((one, other), matches, strict=True))
            end = found.port.nearest(found.adding(both).at(lost), max(each.index for each in matches))
            if end and all(found.port.leads_to(each.index, end.index) for each in matches):
                return both
    return {}


def only_passed(found: Found, moved: Collection[str]) -> list[str]:
    """Return the taps whose match is also the match of an input, if only `moved` taps depend on them. A port may apply
    a norm later, for example."""
    return [
        tap
        for tap, match in found.matches.items()
        if found.flow.outputs[tap] and found.flow.outputs[tap] <= {*moved}
        if any(found.index(name) == match.index for name in found.flow.inputs[tap] & found.matches.keys())
    ]


Pair = tuple[np.ndarray, np.ndarray]


def reordered(found: Found) -> dict[str, Match]:
    """Match queries and keys whose features have another common order, which leaves the scores unchanged."""
    matches: dict[str, Match] = {}
    for scores in (tap for tap in found.flow.inputs if tap.endswith(".scores")):
        scope, before = scores.removesuffix("scores"), sorted(found.flow.inputs[scores] - found.matches.keys())
        queries, keys = ([tap for tap in before if tap.startswith(f"{scope}{role}")] for role in ("query", "key"))
        for query, key in itertools.product(queries, keys):
            both = _in_one_order((found.ours[query], found.ours[key]), found.port)
            matches |= dict(zip((query, key), both, strict=False))
    return matches


def _in_one_order(ours: Pair, port: Recorded) -> tuple[Match, ...]:
    ways: list[list[Match]] = []
    for each in ours:
        same = port.with_numbers(each, port.by_size.get(each.size, ()))
        fits = ((index, layouts(each.shape, port.values[index].shape, port.heads)) for index in same)
        ways.append([Match(index, fit) for index, every in fits for fit in every if fit.split == each.shape])
    for pair in itertools.product(*ways):
        query, key = (port.read(match) for match in pair)
        if features := _order(ours, (query, key), port.tolerance):
            turned = (dataclasses.replace(match.layout, features=features) for match in pair)
            return tuple(Match(match.index, layout) for match, layout in zip(pair, turned, strict=True))
    return ()


def _order(ours: Pair, theirs: Pair, tolerance: float) -> tuple[int, ...]:
    """Return the port's nearest unused feature for each feature of the reference; () if a feature has none."""
    wanted, given = _features(ours, ours), _features(theirs, ours)
    order: list[int] = []
    for feature in wanted:
        apart = np.abs(given - feature).max(axis=1)
        apart[order] = np.inf
        order.append(int(apart.argmin()))
        if not apart[order[-1]] <= tolerance:
            return ()
    return tuple(order)


def _features(values: Pair, scales: Pair) -> np.ndarray:
    largest = [float(np.abs(each).max(initial=0.0)) or 1.0 for each in scales]
    rows = [
        np.moveaxis(value, -1, 0).reshape(value.shape[-1], -1) / size
        for value, size in zip(values, largest, strict=True)
    ]
    return np.concatenate(rows, axis=1)
