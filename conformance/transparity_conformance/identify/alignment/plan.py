"""The plan of a port: which operation computes which tap. One call determines the plan for all calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity.config import EXACT_MASK_BELOW
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.align import align
from transparity_conformance.identify.alignment.found import Matches
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.forms import unmasked, unrepeated, with_biases
from transparity_conformance.matching.graph import common, made_from
from transparity_conformance.matching.recorded import Layout, Match, Recorded, layouts
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe


@dataclass(frozen=True, eq=False)
class Plan:
    """The operations that compute the taps for one row without padding."""

    port: Recorded
    matches: Matches
    ways: Mapping[str, Sequence[Match]]
    """The operations from which to read a tap: an operation with the tap's order of axes, if any, then later operations
    that leave its value unchanged. A mask, for example, changes nothing without padding."""
    known: Combination


def plan_of(
    probe: Probe, operations: Sequence[Operation], answer: np.ndarray, dtype: str, clock: Clock, known: Combination = ()
) -> Plan:
    port = recorded(probe, operations, answer, dtype)
    matches = align(probe, port, clock, known)
    first = {tap: _in_order(port, match) or match for tap, match in matches.items() if tap != "logits"}
    ways = {tap: [match, *_unchanged(port, match)] for tap, match in first.items()}
    return Plan(port, matches, ways, known)


def recorded(probe: Probe, operations: Sequence[Operation], answer: np.ndarray, dtype: str) -> Recorded:
    """Return the operations as `Recorded`: repeated heads occur once, and scores exclude a mask that is added with a
    position bias."""
    heads, shared = probe.config.num_heads, probe.config.key_value_heads
    once = [dataclasses.replace(each, value=unrepeated(each.value, heads, shared)) for each in with_biases(operations)]
    return Recorded(once, answer, heads, dtype)


def _unchanged(port: Recorded, match: Match) -> list[Match]:
    found: list[Match] = []
    index, value = match.index, port.values[match.index]
    while len(users := set(port.readers.get(index, ()))) == 1:
        index = users.pop()
        other = port.values[index]
        if other.shape != value.shape or not np.array_equal(other, value):
            break
        found.append(dataclasses.replace(match, index=index))
    return found


def _in_order(port: Recorded, match: Match) -> Match | None:
    """Return the first operation with the elements of `match` in the tap's order of axes, if any."""
    if match.layout.is_in_order:
        return match
    value = port.read(match)
    for index in port.by_size[value.size]:
        if index > match.index and port.leads_to(match.index, index):
            fits = layouts(value.shape, port.values[index].shape, port.heads)
            if fits and fits[0].is_in_order and np.array_equal(fits[0].to_ours(port.values[index]), value):
                return Match(index, fits[0])
    return None


def read(
    plan: Plan, probe: Probe, operations: Sequence[Operation], answer: np.ndarray
) -> tuple[Arrays, dict[str, int]]:
    """Return another call's taps and their operations. Join the operations of a loop over rows."""
    rows = len(next(iter(probe.inputs.values())))
    shapes = tap_shapes(probe.config, rows, **lengths_of(probe.config, probe.inputs))
    here = Recorded(operations, answer)
    taps: Arrays = {"logits": answer}
    numbers: dict[str, int] = {"logits": (*here.made_answer, len(operations) - 1)[0]}
    for tap, matches in _placed(plan, here, rows).items():
        ways: list[tuple[np.ndarray, int]] = []
        for each, indices in matches:
            shape = (shapes[tap][0] // len(indices), *shapes[tap][1:])
            found = ((way, indices[-1]) for way in _ways(probe, operations, indices, tap, shape, each.layout))
            ways += [way for way in found if not any(np.array_equal(way[0], other) for other, _ in ways)]
        if len(ways) > 1:  # take the value nearest to the reference, which continues from the port's earlier values
            before = {name: value for name, value in taps.items() if name != "logits"}
            ours = walk(probe, before, plan.known, until=tap)[tap]
            with np.errstate(invalid="ignore"):
                errors = [float(np.abs(value - ours).max()) for value, _ in ways]
            ways = [ways[min(range(len(ways)), key=errors.__getitem__)]]
        if ways:
            taps[tap], numbers[tap] = ways[0]
    return {tap: taps[tap] for tap in shapes if tap in taps}, numbers


def _ways(
    probe: Probe,
    operations: Sequence[Operation],
    indices: Sequence[int],
    tap: str,
    shape: tuple[int, ...],
    learned: Layout,
) -> list[np.ndarray]:
    """Return the possible values of a tap, one for each order of axes. The operations `indices` compute its rows, in
    order."""
    values, config = [unmasked(operations, index) for index in indices], probe.config
    heads = config.num_heads, config.key_value_heads
    values = [each if each.size == math.prod(shape) else unrepeated(each, *heads) for each in values]
    grows = any(operations[index].grows for index in indices) and tap.endswith(".scores")
    if grows or any((value < EXACT_MASK_BELOW).any() for value in values):
        return []
    rows_of = [_arranged(value, shape, learned, probe.config.num_heads) for value in values]
    if not all(rows_of):
        return []
    return rows_of[0] if len(rows_of) == 1 else [np.concatenate([ways[0] for ways in rows_of])]


def _placed(plan: Plan, here: Recorded, rows: int) -> dict[str, list[tuple[Match, list[int]]]]:
    """Return the operations of each tap that also occur in another call, with their indices there. If the call loops
    over rows, an operation has one index per row."""
    learned, keys = plan.port.keys[:-1], here.keys[:-1]
    turns = next((turns for turns in (1, rows) if keys == learned * turns), 0)
    if turns:
        moved = {index: [index + turn * len(learned) for turn in range(turns)] for index in range(len(learned))}
    else:
        moved = {index: [other] for index, other in _moved(plan, here).items()}
    found = {tap: _in_call(ways, moved) or _in_call([plan.matches[tap]], moved) for tap, ways in plan.ways.items()}
    found = {tap: ways for tap, ways in found.items() if ways}
    return found if turns else {tap: found[tap] for tap in _made_alike(plan.port, here, found)}


def _in_call(ways: Sequence[Match], moved: Mapping[int, list[int]]) -> list[tuple[Match, list[int]]]:
    return [(each, moved[each.index]) for each in ways if each.index in moved]


def _made_alike(
    port: Recorded, here: Recorded, found: Mapping[str, Sequence[tuple[Match, Sequence[int]]]]
) -> Iterator[str]:
    """Yield the taps that depend on the same earlier taps in both calls. `_moved` may be wrong at others, for example
    with unused experts."""
    first = {tap: (ways[0][0].index, ways[0][1][0]) for tap, ways in found.items()}
    taps = sorted(first, key=first.__getitem__)
    learned = _sources(port.inputs, [first[tap][0] for tap in taps])
    now = _sources(here.inputs, [first[tap][1] for tap in taps])
    kept = 0
    for number, (tap, one, other) in enumerate(zip(taps, learned, now, strict=True)):
        if one & kept == other & kept:
            kept |= 1 << number
            yield tap


def _sources(inputs: Sequence[Sequence[int]], indices: Sequence[int]) -> list[int]:
    """Return, for each operation, a bit set of the operations that lead to it."""
    own: dict[int, int] = {}
    for number, index in enumerate(indices):
        own[index] = own.get(index, 0) | 1 << number
    found = made_from(inputs, lambda index: own.get(index, 0))
    return [found[index] for index in indices]


def _arranged(value: np.ndarray, shape: tuple[int, ...], learned: Layout, heads: int) -> list[np.ndarray]:
    """Return a tap's value in each order of axes that agrees with `learned` or, if none agrees, in the least permuted
    order."""
    if learned.features and len(learned.features) != shape[-1]:
        return []
    fits = layouts(shape, value.shape, heads)
    told = [axis for axis in learned.order if learned.split[axis] > 1]
    same = [
        each for each in fits if len(each.split) == len(learned.split) and [x for x in each.order if x in told] == told
    ]
    ways = [dataclasses.replace(fit, features=learned.features).to_ours(value) for fit in same or fits[:1]]
    return [way for i, way in enumerate(ways) if not any(np.array_equal(way, other) for other in ways[:i])]


def _moved(plan: Plan, here: Recorded) -> dict[int, int]:
    """Map operations to the equal operations of a different call. If several are equal, prefer the input of an
    operation that is already mapped."""
    moved = dict(common(plan.port.keys[:-1], here.keys[:-1]))
    wanted = {match.index for ways in (plan.matches.values(), *plan.ways.values()) for match in ways}
    used: dict[int, int] = {}
    for user, other_user in moved.items():
        pair = plan.port.inputs[user], here.inputs[other_user]
        for index, other in zip(*pair, strict=True) if len(pair[0]) == len(pair[1]) else ():
            if index in wanted and here.keys[other] == plan.port.keys[index]:
                used.setdefault(index, other)
    return moved | used
