"""A GGUF file: its metadata, and its tensors, dequantised one by one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from transparity.errors import shown
from transparity.limits.files import file_size
from transparity_conformance.capabilities.stranger import PortCallError, call_stranger
from transparity_conformance.report.text import reason
from transparity_conformance.running.loading import LoadError

MOST_ITEMS = 2**22
"""Tensors, fields, or items of an array of metadata; the longest lists are those of tokenizers, about 2¹⁹."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A tensor as it is stored."""

    name: str
    kind: Any
    """Its `GGMLQuantizationType`."""
    shape: tuple[int, ...]
    data: np.ndarray

    def numbers(self) -> np.ndarray:
        """Its numbers in float32; raises `LoadError` for a type that cannot be dequantised."""
        try:
            found = call_stranger(gguf.dequantize, self.data, self.kind)
        except PortCallError as error:
            raised = reason(error.__cause__ or error)
            raise LoadError(f"{self.name} has the type {self.kind.name}, which gguf cannot read: {raised}.") from None
        return np.asarray(found, np.float32).reshape(self.shape)


@dataclass(frozen=True, eq=False)
class GgufFile:
    """An open file."""

    path: Path
    architecture: str
    fields: dict[str, Any]
    """Metadata by key, without tokenizers' lists."""
    tensors: dict[str, Tensor]

    def field(self, name: str) -> Any:
        """The metadata of the architecture, such as `rope.freq_base`; None if there is none."""
        return self.fields.get(f"{self.architecture}.{name}")


def read_gguf(path: Path) -> GgufFile:
    """Open a file; raises `LoadError` if it cannot be read."""
    file_size(path, LoadError)
    try:
        opened: GgufFile = call_stranger(_read, path)
        return opened
    except PortCallError as error:
        raise LoadError(f"{path} cannot be read as a GGUF file: {reason(error.__cause__ or error)}.") from None


class _Reader(gguf.GGUFReader):  # type: ignore[misc]
    """The library's reader with bounds: counts are a stranger's, and it takes what is beyond the end for empty."""

    def _get(self, offset: int, dtype: Any, count: int = 1, *order: Any, **named: Any) -> Any:
        if offset + np.dtype(dtype).itemsize * int(count) > len(self.data):
            raise ValueError("it is shorter than its header or its tensors")
        return super()._get(offset, dtype, count, *order, **named)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type == gguf.GGUFValueType.ARRAY:
            _check_count(self._get(orig_offs + 4, np.uint64))
        return super()._get_field_parts(orig_offs, raw_type)


def _check_count(counts: np.ndarray) -> None:
    if counts.max(initial=0) > MOST_ITEMS:
        raise ValueError(f"it announces {counts.max():,} items, expected at most {MOST_ITEMS:,}")


def _read(path: Path) -> GgufFile:
    _check_count(np.fromfile(path, "<u8", 2, offset=8))  # of its tensors and fields
    reader = _Reader(path)
    if reader.byte_order != "I":
        raise ValueError("its numbers are big-endian")
    lists = {"tokens", "merges", "scores", "token_type"}
    fields = {name: field.contents() for name, field in reader.fields.items() if name.rpartition(".")[2] not in lists}
    architecture = fields.get("general.architecture")
    if not isinstance(architecture, str):
        raise ValueError(f"its general.architecture is {shown(architecture)}")
    tensors = {
        each.name: Tensor(each.name, each.tensor_type, tuple(int(size) for size in reversed(each.shape)), each.data)
        for each in reader.tensors
    }
    return GgufFile(path, architecture, fields, tensors)
