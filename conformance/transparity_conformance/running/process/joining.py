"""Join the answers of all ranks: arrays by their placements; everything else must be equal.

Operations are kept only if their value is equal on every rank, because a shard may have another activation's shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.capabilities.sharding import Sharding, join
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.process.wire import Handle

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Replicas:
    """Differing replicas of a value, in the call with the largest difference."""

    name: str
    relative: float
    """The difference relative to the largest number."""
    gap: float
    ranks: tuple[int, int]


@dataclass
class Differing:
    """All replicas that were not bitwise equal."""

    worst: dict[str, Replicas] = field(default_factory=dict)
    last: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """The value of each rank in the last call, by name."""

    def note(self, name: str, values: Sequence[Any], gap: float, rank: int) -> None:
        """Record replicas that differ."""
        numbers = [np.asarray(value) for value in values if value is not None]
        self.last[name] = numbers
        largest = float(np.abs(np.nan_to_num(numbers[0])).max(initial=0.0))
        exact = numbers[0].dtype.kind in "iub"
        relative = gap / largest if largest and not exact else np.inf
        if name not in self.worst or relative > self.worst[name].relative:
            self.worst[name] = Replicas(name, relative, gap, (0, rank))


class RankHandle(Handle):
    """An object that stays in the process of each rank."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        super().__init__(handles[0].number, handles[0].kind)
        self.handles = tuple(handles)


def joined(
    name: str, answers: Sequence[Any], sharding: Sharding, shapes: Shapes, differing: Differing, depth: int = 0
) -> Any:
    """Return the joined answer of all ranks.

    Args:
        name: the name of the value: a tap, a parameter, or the method that returned it.
        answers: the answers by rank.
        sharding: the declared placements.
        shapes: the expected shapes, by name.
        differing: receives the replicas that differ.

    Raises `PortError` for inconsistent answers.
    """
    placed = sharding.of(name)
    given = [answer for answer in answers if answer is not None]
    if given and all(isinstance(answer, Mapping) for answer in given):
        if len(given) < len(answers):  # a rank without an answer has none of its values
            answers = [{} if answer is None else answer for answer in answers]
        names = dict.fromkeys(key for answer in answers for key in answer)
        return {
            key: joined(key, [answer.get(key) for answer in answers], sharding, shapes, differing, depth + 1)
            for key in names
        }
    if given and all(isinstance(answer, tuple | list) and len(answer) == len(given[0]) for answer in given):
        columns = zip(*given, strict=True)
        items = [joined(name, column, sharding, shapes, differing, depth + 1) for column in columns]
        return tuple(items) if isinstance(given[0], tuple) else items
    if given and all(isinstance(answer, Handle) for answer in given) and len(given) == len(answers):
        return RankHandle(given)
    if given and all(_is_number(answer) for answer in given):
        values = [None if answer is None else np.asarray(answer) for answer in answers]
        found = join(name, values, placed, shapes.get(name))
        if found.gap > 0:
            differing.note(name, values, found.gap, found.rank)
        return found.value if isinstance(given[0], np.ndarray) else found.value.item()
    return _same(name, answers)


def _is_number(value: Any) -> bool:
    return isinstance(value, np.ndarray | float | int) and not isinstance(value, bool)


def _same(name: str, answers: Sequence[Any]) -> Any:
    """Return the answer that all ranks gave."""
    for rank, answer in enumerate(answers):
        if type(answer) is not type(answers[0]) or answer != answers[0]:
            raise PortError(
                f"Ranks 0 and {rank} answer {name} differently: {shown(answers[0])} and {shown(answer)}; expected the "
                "same on every rank, or arrays with a declared placement."
            )
    return answers[0]


Names = tuple[str, ...]


class Whole:
    """The operations of built ports with equal values on all ranks.

    The first call decides, because shards of short inputs may be equal by chance.
    """

    def __init__(self) -> None:
        self.told: dict[tuple[int, Names], list[bool]] = {}

    def of(self, number: int, by_rank: Sequence[Sequence[Operation]]) -> list[Operation]:
        """Return the first rank's operations with equal values on all ranks; data flows through the others.

        Ranks that do different work, such as pipeline stages, have whole values of their own.

        Args:
            number: the number of the built port.
            by_rank: the operations of one call, by rank.
        """
        first, names = by_rank[0], [tuple(each.name for each in operations) for operations in by_rank]
        if any(other != names[0] for other in names):
            return list(first)
        key = number, names[0]
        if key not in self.told:
            self.told[key] = [
                all(np.array_equal(same[0].value, other.value, equal_nan=True) for other in same[1:])
                for same in zip(*by_rank, strict=True)
            ]
        return _kept(first, self.told[key])


def _kept(operations: Sequence[Operation], keep: Sequence[bool]) -> list[Operation]:
    origins: dict[int, tuple[int, ...]] = {}
    kept: list[Operation] = []
    for index, operation in enumerate(operations):
        inputs = tuple(sorted({origin for each in operation.inputs for origin in origins[each]}))
        origins[index] = inputs
        if keep[index]:
            kept.append(dataclasses.replace(operation, inputs=inputs))
            origins[index] = (len(kept) - 1,)
    return kept
