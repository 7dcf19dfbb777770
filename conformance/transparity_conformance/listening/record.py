"""The record of a run: the operations in order, and their data flow through views and in-place writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity_conformance.listening.operation import Operation, Source, Sources

MOST_OPERATIONS = 2**18
"""The largest number of operations in a record."""

Origins = tuple[int, ...]


@dataclass(frozen=True)
class Region:
    owner: int
    """The memory's identifier, which an array and its views share."""
    geometry: Hashable
    """The start, shape, strides and dtype, which determine the elements."""
    array: Any = field(compare=False)
    memory: Any = field(compare=False)
    """The object that owns the memory, which must stay alive so that Python does not reuse its id."""


@dataclass
class _Memory:
    """The operations that computed each part of a memory, and the last writer."""

    kept: Any
    parts: dict[Hashable, Origins] = field(default_factory=dict)
    last: Origins = ()
    written: bool = False
    is_blank: bool = False
    """Whether the memory was uninitialized at first; a view of it may show arbitrary numbers."""
    arriving: Operation | None = None
    """An asynchronous write from other ranks, which the record reads when an operation uses the data."""


class Record:
    """The operations of a run. Values beyond `largest` bytes, and without `whole_numbers` integers and bools, are left
    out. The inputs of such a value become inputs of the operations that read it."""

    def __init__(self, largest: float = math.inf, *, whole_numbers: bool = False) -> None:
        self.whole_numbers = whole_numbers
        self.operations: list[Operation] = []
        self.sources = Sources()
        self.largest, self.size = largest, 0
        self._memories: dict[int, _Memory] = {}
        self._awaited: dict[int, Region] = {}

    def numbers(self, array: np.ndarray) -> np.ndarray | None:
        """Return a float64 copy; None if the dtype is not recorded. Complex arrays get an axis (real, imaginary)."""
        if array.dtype.kind == "c":
            return np.stack([array.real, array.imag], -1).astype(np.float64)
        is_floating = array.dtype.kind == "f" or array.dtype.name.startswith(("bfloat", "float"))
        is_wanted = is_floating or (self.whole_numbers and array.dtype.kind in "iub")
        return np.array(array, np.float64, subok=False) if is_wanted else None

    def knows(self, place: Region) -> bool:
        return place.owner in self._memories

    def leave_blank(self, place: Region) -> None:
        self._memories.setdefault(place.owner, _Memory(place.memory, is_blank=True))

    def is_blank(self, place: Region) -> bool:
        return self.knows(place) and self._memories[place.owner].is_blank

    def has(self, place: Region) -> bool:
        """Return whether the record has this array, and no later operation has modified the array."""
        memory = self._memories.get(place.owner)
        return memory is not None and place.geometry in memory.parts

    def origins(self, places: Iterable[Region]) -> Origins:
        found: set[int] = set()
        for place in places:
            memory = self._memories.get(place.owner)
            if memory is not None:
                found.update(memory.parts.get(place.geometry, memory.last))
        return tuple(sorted(found))

    def settle(self, place: Region, value: Callable[[Any], np.ndarray | None]) -> None:
        """Record an array that operations wrote piece by piece, with the name and line of the last write."""
        memory = self._memories.get(place.owner)
        if memory is None or not memory.written or place.geometry in memory.parts:
            return
        last = memory.arriving or (self.operations[memory.last[-1]] if memory.last else None)
        now = value(place.array)
        if last is not None and now is not None:
            memory.parts[place.geometry] = self.add(last.name, now, memory.last, last.stack)

    def add(self, name: str, value: np.ndarray | None, inputs: Origins, stack: tuple[Source, ...]) -> Origins:
        """Record a value, and return (its index,). If the record leaves the value out, return `inputs` instead."""
        if value is None or value.size == 0 or len(self.operations) == MOST_OPERATIONS:
            return inputs
        if self.size + value.nbytes > self.largest:
            return inputs
        self.size += value.nbytes
        self.operations.append(Operation(name, value, inputs, stack))
        return (len(self.operations) - 1,)

    def put(self, place: Region, origins: Origins) -> None:
        memory = self._memories.setdefault(place.owner, _Memory(place.memory))
        memory.parts[place.geometry] = origins
        if not memory.written:
            memory.last = memory.last or origins

    def write(self, place: Region, origins: Origins) -> None:
        """Store the operations that modified an array, and forget other arrays in the same memory."""
        memory = self._memories.setdefault(place.owner, _Memory(place.memory))
        memory.parts = {place.geometry: origins}
        memory.last, memory.written, memory.arriving = origins, True, None

    def await_write(self, place: Region, name: str, inputs: Origins, stack: tuple[Source, ...]) -> None:
        memory = self._memories.setdefault(place.owner, _Memory(place.memory))
        memory.parts, memory.last, memory.written = {}, inputs, True
        memory.arriving = Operation(name, np.empty(0), inputs, stack)
        self._awaited[place.owner] = place

    def settle_awaited(self, value: Callable[[Any], np.ndarray | None]) -> None:
        """Record data from other ranks that no operation has read, because the run may return them."""
        for place in self._awaited.values():
            self.settle(place, value)
