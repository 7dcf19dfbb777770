"""The plan of a port: which operation computes which tap. One call determines the plan for all calls."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
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
    in_order: Matches
    """Later operations with a tap's elements, in the tap's order of axes."""
    unchanged: Mapping[str, Sequence[Match]]
    """The next operations that leave a tap's value unchanged, such as a mask without padding."""
    known: Combination


def plan_of(
    probe: Probe, operations: Sequence[Operation], answer: np.ndarray, dtype: str, clock: Clock, known: Combination = ()
) -> Plan:
    port = recorded(probe, operations, answer, dtype)
    matches = align(probe, port, clock, known)
    ordered = {tap: _in_order(port, match) for tap, match in matches.items()}
    in_order = {tap: match for tap, match in ordered.items() if match is not None}
    unchanged = {tap: _unchanged(port, in_order.get(tap, match)) for tap, match in matches.items()}
    return Plan(port, matches, in_order, {tap: found for tap, found in unchanged.items() if found}, known)


def recorded(probe: Probe, operations: Sequence[Operation], answer: np.ndarray, dtype: str) -> Recorded:
    """Return the call, with repeated heads only once, and with scores before a mask that also contains a position
    bias."""
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
    lengths = lengths_of(probe.config, probe.inputs)
    rows = len(next(iter(probe.inputs.values())))
    shapes = tap_shapes(probe.config, rows, **lengths)
    taps: Arrays = {"logits": answer}
    here, learned = Recorded(operations, answer), plan.port
    numbers: dict[str, int] = {"logits": (*here.made_answer, len(operations) - 1)[0]}
    count, keys = len(learned.operations), here.keys[:-1]
    repeats = rows if rows > 1 and keys == learned.keys[:-1] * rows else 1
    moved = _moved(plan, here) if repeats == 1 else {}
    placed = _placed(plan, None if repeats > 1 else moved)
    if here.keys != learned.keys and repeats == 1:
        placed = _made_alike(plan, here, placed, moved)
    for tap, match in placed.items():
        shape = (shapes[tap][0] // repeats, *shapes[tap][1:])
        ways: list[tuple[np.ndarray, int]] = []
        for each in (match, *plan.unchanged.get(tap, ())):
            if repeats > 1 or each.index in moved:
                indices = [each.index + row * count for row in range(repeats)] if repeats > 1 else [moved[each.index]]
                ways += [(way, indices[-1]) for way in _ways(probe, operations, indices, tap, shape, each.layout)]
        ways = [way for i, way in enumerate(ways) if not any(np.array_equal(way[0], other[0]) for other in ways[:i])]
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
    """Return the possible values of a tap, one for each order of axes. Each operation computes some rows."""
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


def _placed(plan: Plan, moved: Mapping[int, int] | None) -> dict[str, Match]:
    """Return the operation of each tap in another call; prefer operations in the tap's order of axes. `moved` maps the
    operations that occur in the other call; None if all occur."""
    placed: dict[str, Match] = {}
    for tap, match in plan.matches.items():
        ways = (plan.in_order.get(tap), match, *plan.unchanged.get(tap, ()))
        found = next((each for each in ways if each and (moved is None or each.index in moved)), None)
        if tap != "logits" and found:
            placed[tap] = found
    return placed


def _made_alike(plan: Plan, here: Recorded, placed: Mapping[str, Match], moved: Mapping[int, int]) -> dict[str, Match]:
    """Return the taps with the same inputs in both calls. Unused experts, for example, may confuse `moved`."""
    taps = sorted(placed, key=lambda tap: placed[tap].index)
    learned = _sources(plan.port.inputs, [placed[tap].index for tap in taps])
    now = _sources(here.inputs, [moved[placed[tap].index] for tap in taps])
    kept = 0
    for number, (one, other) in enumerate(zip(learned, now, strict=True)):
        if one & kept == other & kept:
            kept |= 1 << number
    return {tap: placed[tap] for number, tap in enumerate(taps) if kept >> number & 1}


def _sources(inputs: Sequence[Sequence[int]], indices: Sequence[int]) -> list[int]:
    """Return, for each operation, a bit set of the operations that lead to it."""
    own: dict[int, int] = {}
    for number, index in enumerate(indices):
        own[index] = own.get(index, 0) | 1 << number
    found = made_from(inputs, lambda index: own.get(index, 0))
    return [found[index] for index in indices]


def _arranged(value: np.ndarray, shape: tuple[int, ...], learned: Layout, heads: int) -> list[np.ndarray]:
    """Return a tap's value for each order of axes that agrees with `learned`, or for the least permuted order."""
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
    """Map operations to their counterparts in another call, which are inputs of the same operations."""
    learned = plan.port.keys[:-1]
    if learned == here.keys[:-1]:
        return {index: index for index in range(len(learned))}
    moved = dict(common(learned, here.keys[:-1]))
    wanted = {match.index for matches in (plan.matches, plan.in_order) for match in matches.values()}
    used: dict[int, int] = {}
    for user, other_user in moved.items():
        pair = plan.port.inputs[user], here.inputs[other_user]
        for index, other in zip(*pair, strict=True) if len(pair[0]) == len(pair[1]) else ():
            if index in wanted and here.keys[other] == plan.port.keys[index]:
                used.setdefault(index, other)
    return moved | used
