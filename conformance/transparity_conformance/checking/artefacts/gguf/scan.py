"""A GGUF file measured before it is read: its counts and lengths are those of a stranger."""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import gguf

from transparity.limits.files import file_size
from transparity_conformance.report.text import reason
from transparity_conformance.running.loading import LoadError

MAGIC, VERSIONS = b"GGUF", (2, 3)
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the values of metadata, by the number of their type; 8 is a string, and 9 an array."""

STRING, ARRAY, MOST_AXES = 8, 9, 4


def check_gguf(path: Path) -> None:
    """Raise `LoadError` unless `path` has the whole of what its header announces."""
    size = file_size(path, LoadError)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Scan(data, size).all()
    except (struct.error, ValueError, OSError) as error:
        raise LoadError(f"{path} cannot be read as a GGUF file: {reason(error)}.") from None


class _Scan:
    """A walk through the header."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size, self.at = data, size, 0

    def all(self) -> None:
        if self.data[:4] != MAGIC:
            raise ValueError("it does not begin with GGUF")
        self.at = 4
        (version,) = self.read("<I")
        if version not in VERSIONS:
            raise ValueError(f"its version is {version}, expected 2 or 3")
        tensors, fields = self.read("<QQ")
        for _ in range(self.counted(fields, 13)):
            self.string()
            self.value(*self.read("<I"))
        ends = [self.tensor() for _ in range(self.counted(tensors, 24))]
        if self.at + max(ends, default=0) > self.size:
            raise ValueError("it is shorter than its tensors")

    def read(self, form: str) -> Any:
        found = struct.unpack_from(form, self.data, self.at)
        self.skip(struct.calcsize(form))
        return found

    def skip(self, count: int) -> None:
        if count > self.size - self.at:
            raise ValueError("it is shorter than its header")
        self.at += count

    def counted(self, count: int, least: int) -> int:
        """A number of things, each of which takes at least so many bytes."""
        if count * least > self.size - self.at:
            raise ValueError("it is shorter than its header")
        return count

    def string(self) -> None:
        self.skip(*self.read("<Q"))

    def value(self, kind: int) -> None:
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            kind, count = self.read("<IQ")
            if kind == STRING:
                for _ in range(self.counted(count, 8)):
                    self.string()
            else:
                self.skip(self.counted(count, self.size_of(kind)) * self.size_of(kind))
        else:
            self.skip(self.size_of(kind))

    def size_of(self, kind: int) -> int:
        if kind not in SIZES:
            raise ValueError(f"a value has the type {kind}, which there is not")
        return SIZES[kind]

    def tensor(self) -> int:
        """The end of a tensor's numbers, from the end of the header on."""
        self.string()
        (axes,) = self.read("<I")
        if axes > MOST_AXES:
            raise ValueError(f"a tensor has {axes} axes, expected at most {MOST_AXES}")
        count = math.prod(self.read(f"<{axes}Q"))
        kind, offset = self.read("<IQ")
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
        return int(offset) + count // block * size
