"""Arrays by name that are in a temporary file, not in memory: the activations of a model with many layers."""

from __future__ import annotations

import math
import tempfile
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any

import numpy as np

SMALL = 2**12
"""Bytes of an array that is kept in memory."""


class Stored(MutableMapping[str, Any]):
    """A dictionary whose arrays are written to a file, and read from it each time that they are asked for.

    They cannot be written into. What is no array, or a small one, is kept as it is.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed, and gone, with this object
        weakref.finalize(self, self._file.close)
        self._kept: dict[str, Any] = {}

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(value, np.ndarray) or _held(value) <= SMALL:
            self._kept[name] = value
            return
        begin = -(-self._file.seek(0, 2) // value.itemsize) * value.itemsize
        self._file.seek(begin)
        self._file.write(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        self._kept[name] = _Place(begin, value.dtype, value.shape)

    def __getitem__(self, name: str) -> Any:
        value = self._kept[name]
        if not isinstance(value, _Place):
            return value
        self._file.flush()
        return np.asarray(np.memmap(self._file, value.dtype, "r", value.begin, value.shape))

    def __delitem__(self, name: str) -> None:
        del self._kept[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, name: object) -> bool:
        return name in self._kept  # that of a mapping reads the array


class _Place:
    """Where an array is in the file."""

    def __init__(self, begin: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.begin, self.dtype, self.shape = begin, dtype, shape


def _held(value: np.ndarray) -> int:
    """The bytes that an array holds: one number that is repeated takes no more."""
    sizes = (size for size, stride in zip(value.shape, value.strides, strict=True) if stride)
    return math.prod(sizes) * value.itemsize
