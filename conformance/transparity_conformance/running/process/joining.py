"""Join the answers of all ranks into one answer. Arrays are joined by their placements; other values must be equal.

Recorded operations are kept only if their values are equal on all ranks, because a shard might look like another
activation.
"""

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
    name: str
    relative: float
    """`gap`, divided by the largest absolute value on rank 0."""
    gap: float
    ranks: tuple[int, int]


@dataclass
class Differing:
    """Values that should be equal on all ranks, but are not bitwise equal."""

    worst: dict[str, Replicas] = field(default_factory=dict)
    """The largest relative difference in any call, by the name of the value."""
    last: dict[str, list[np.ndarray]] = field(default_factory=dict)
    """The differing values of the last call by name: one array per rank."""

    def note(self, name: str, values: Sequence[Any], gap: float, rank: int) -> None:
        numbers = [np.asarray(value) for value in values if value is not None]
        self.last[name] = numbers
        largest = float(np.abs(np.nan_to_num(numbers[0])).max(initial=0.0))
        relative = gap / largest if largest and numbers[0].dtype.kind not in "iub" else np.inf
        if name not in self.worst or relative > self.worst[name].relative:
            self.worst[name] = Replicas(name, relative, gap, (0, rank))


class RankHandle(Handle):
    """An object that stays in the processes of all ranks: one handle per rank."""

    def __init__(self, handles: Sequence[Handle]) -> None:
        super().__init__(handles[0].number, handles[0].kind)
        self.handles = tuple(handles)


def handle_of(handles: Sequence[Handle]) -> Handle:
    return handles[0] if len(handles) == 1 else RankHandle(handles)


def joined(name: str, answers: Sequence[Any], sharding: Sharding, shapes: Shapes, differing: Differing) -> Any:
    """Join the answers of all ranks to one request; `name` is an activation, a parameter, or the called method. In
    `differing`, record values that differ between ranks but should not. Raise `PortError` for inconsistent answers."""
    placed = sharding.of(name)
    given = [answer for answer in answers if answer is not None]
    if given and all(isinstance(answer, Mapping) for answer in given):
        if len(given) < len(answers):  # None: the rank has no part of any value
            answers = [{} if answer is None else answer for answer in answers]
        names = dict.fromkeys(key for answer in answers for key in answer)
        return {key: joined(key, [answer.get(key) for answer in answers], sharding, shapes, differing) for key in names}
    if given and all(isinstance(answer, tuple | list) and len(answer) == len(given[0]) for answer in given):
        items = [joined(name, column, sharding, shapes, differing) for column in zip(*given, strict=True)]
        return tuple(items) if isinstance(given[0], tuple) else items
    if given and all(isinstance(answer, Handle) for answer in given) and len(given) == len(answers):
        return handle_of(given)
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
    for rank, answer in enumerate(answers):
        if type(answer) is not type(answers[0]) or answer != answers[0]:
            raise PortError(
                f"Ranks 0 and {rank} give different answers for {name}: {shown(answers[0])} and {shown(answer)}; "
                "expected the same answer on every rank, or arrays with a declared placement."
            )
    return answers[0]


Names = tuple[str, ...]


class Whole:
    """The operations whose values are equal on all ranks. The first call of a port determines them for later calls,
    because shards of a shorter input may be equal by chance."""

    def __init__(self) -> None:
        self.are_equal: dict[tuple[int, Names], list[bool]] = {}

    def of(self, port: Handle, by_rank: Sequence[Sequence[Operation]]) -> list[Operation]:
        """Return the operations of rank 0 whose values are equal on all ranks. A returned operation refers to the
        nearest returned operations that computed its inputs. If the ranks run different operations, as pipeline stages
        do, return all operations of rank 0."""
        if len(by_rank) == 1:
            return list(by_rank[0])
        first, names = by_rank[0], [tuple(each.name for each in operations) for operations in by_rank]
        if any(other != names[0] for other in names):
            return list(first)
        key = port.number, names[0]
        if key not in self.are_equal:
            self.are_equal[key] = [
                all(np.array_equal(same[0].value, other.value, equal_nan=True) for other in same[1:])
                for same in zip(*by_rank, strict=True)
            ]
        return _kept(first, self.are_equal[key])


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
