"""Mappings from names to arrays on disk, and functions that change the mappings without reading an array."""

from __future__ import annotations

import functools
import tempfile
import weakref
from collections.abc import Callable, Collection, Mapping, MutableMapping
from typing import Any

import numpy as np

from transparity.limits.lazy import Lazy

Arrays = Mapping[str, np.ndarray]


class _Room:
    """A temporary file without a name, to which arrays are appended. The file is closed when this object is freed."""

    def __init__(self) -> None:
        self.file: Any = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed below
        weakref.finalize(self, self.file.close)

    def add(self, value: np.ndarray) -> int:
        begin: int = self.file.seek(0, 2)
        self.file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
        return begin

    def read(self, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        value = np.empty(shape, dtype)
        self.file.seek(begin)
        if (count := self.file.readinto(value.reshape(-1).view(np.uint8))) != value.nbytes:
            raise OSError(f"a temporary file ends after {count} of {value.nbytes} bytes")
        return value


class OnDisk(Lazy, MutableMapping[str, np.ndarray]):
    """Arrays in a temporary file in `TMPDIR`. A copy of the mapping reads the same file. A broadcast scalar stays in
    memory."""

    def __init__(self) -> None:
        self.room, self.places = _Room(), {}

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        if any(value.strides):
            self.places[name] = functools.partial(self.room.read, self.room.add(value), value.shape, value.dtype)
        else:
            self.places[name] = lambda: value

    def __delitem__(self, name: str) -> None:
        del self.places[name]

    def __copy__(self) -> OnDisk:
        other = OnDisk()
        other.places = dict(self.places)
        return other


def chosen(arrays: Arrays, names: Collection[str]) -> Arrays:
    if isinstance(arrays, dict):
        return {name: arrays[name] for name in names}
    return Lazy(names, arrays.__getitem__)


def changed(arrays: Arrays, change: Callable[[np.ndarray], np.ndarray]) -> Arrays:
    """Apply `change` to every array; a lazy array is changed when it is read."""
    if isinstance(arrays, dict):
        return {name: change(value) for name, value in arrays.items()}
    return Lazy(arrays, lambda name: change(arrays[name]))
