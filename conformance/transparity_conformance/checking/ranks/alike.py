"""The operations of a port on ranks whose values are whole: those that are the same on every rank.

A shard may have the shape of another activation, and would be taken for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from transparity_conformance.listening.operation import Operation

Names = tuple[str, ...]


class Whole:
    """What is whole of the operations of built ports: told on the first call, as short ones have shards that are the
    same by chance."""

    def __init__(self) -> None:
        self.told: dict[tuple[int, Names], list[bool]] = {}

    def of(self, number: int, by_rank: Sequence[Sequence[Operation]]) -> list[Operation]:
        """The operations of the first rank that have the same values on all; data flows through the others.

        Ranks that do different work, as stages of a pipeline, have whole values of their own.

        Args:
            number: the built port's.
            by_rank: the operations of one call, by rank.
        """
        first, names = by_rank[0], [tuple(each.name for each in operations) for operations in by_rank]
        if any(other != names[0] for other in names):
            return list(first)
        key = number, names[0]
        if key not in self.told:
            self.told[key] = [_is_alike([operations[index] for operations in by_rank]) for index in range(len(first))]
        return _kept(first, self.told[key])


def _is_alike(same: Sequence[Operation]) -> bool:
    return all(np.array_equal(same[0].value, other.value, equal_nan=True) for other in same[1:])


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
