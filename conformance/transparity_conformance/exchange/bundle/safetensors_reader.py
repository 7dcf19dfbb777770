"""safetensors files from strangers: everything is held to what is expected before a byte of data is read.

The library believes a header before we could look at it, and NumPy has no bfloat16: so the few lines are here.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from transparity.errors import shown
from transparity_conformance.checkpoints.files import BundleError, _object, file_size, refuse_constant
from transparity_conformance.report.text import reason

Shapes = Mapping[str, tuple[int, ...]]

DTYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}

INTEGERS = ("I32", "I64")

HEADER_SPARE, HEADER_OF_ONE = 2**20, 512
"""The largest header in bytes: once for the file, and for each tensor that is expected."""


@dataclass(frozen=True)
class Entry:
    """Position of a tensor in its file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    begin: int
    end: int


def read_entries(
    path: str | os.PathLike[str],
    expected: Shapes,
    dtypes: Collection[str],
    *,
    optional: bool = False,
    cut: bool = False,
    integers: Collection[str] = (),
) -> list[Entry]:
    """Find the tensors of a file by its header, without reading any.

    Args:
        expected: the names and shapes; no other tensor may be there.
        dtypes: those that a tensor may have.
        optional: whether some tensors may be missing.
        cut: whether the file may end early; tensors beyond its end are left out.
        integers: names of tensors that have one of the dtypes `INTEGERS` instead.
    """
    path = Path(path)
    size = file_size(path)
    length, header = _read_header(path, size, expected)
    if not isinstance(header, dict):
        raise _unreadable(path, "its header is no object")
    header.pop("__metadata__", None)
    entries = [
        _entry(path, name, fields, expected, INTEGERS if name in integers else dtypes)
        for name, fields in header.items()
    ]
    for name in () if optional else expected:
        if name not in header:
            raise BundleError(f"{path} has no tensor {name!r}; it should have the shape {list(expected[name])}.")
    end = _end(path, entries)
    available = size - 8 - length
    if available != end and not (cut and available < end):
        raise _unreadable(path, f"its header speaks of {shown(end)} bytes of data, and it has {available}")
    return [
        Entry(entry.name, entry.dtype, entry.shape, 8 + length + entry.begin, 8 + length + entry.end)
        for entry in entries
        if entry.end <= available
    ]


def _end(path: Path, entries: Collection[Entry]) -> int:
    """The number of bytes of data, without a gap between tensors."""
    end = 0
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != end:
            raise _unreadable(
                path, f"{shown(entry.name)} begins at {shown(entry.begin)}, not where the one before it ends"
            )
        end = entry.end
    return end


def load_entries(path: str | os.PathLike[str], entries: Collection[Entry]) -> dict[str, np.ndarray]:
    """The arrays; half precisions as float32, which holds them exactly."""
    return dict(arrays_of(path, entries))


def arrays_of(path: str | os.PathLike[str], entries: Iterable[Entry]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the array of each entry, as `load_entries` returns them."""
    try:
        with Path(path).open("rb") as file:
            for entry in entries:
                file.seek(entry.begin)
                data = file.read(entry.end - entry.begin)
                if len(data) != entry.end - entry.begin:
                    raise _unreadable(Path(path), "it ends early")
                value = np.frombuffer(data, entry.dtype).reshape(entry.shape)
                yield entry.name, value.astype(np.float32) if entry.dtype.itemsize == 2 else value
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {reason(error)}.") from None


def read_tensors(
    path: str | os.PathLike[str], expected: Shapes, dtypes: Collection[str], integers: Collection[str] = ()
) -> dict[str, np.ndarray]:
    """Every tensor that is expected, and no other."""
    return load_entries(path, read_entries(path, expected, dtypes, integers=integers))


def _read_header(path: Path, size: int, expected: Shapes) -> tuple[int, Any]:
    most = HEADER_SPARE + sum(len(name) + HEADER_OF_ONE for name in expected)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise _unreadable(path, "it is shorter than its header")
            if length > most:
                raise _unreadable(path, f"its header has {length} bytes, and at most {most} were expected")
            text = file.read(length)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {reason(error)}.") from None
    try:
        return length, json.loads(text.decode("utf-8"), object_pairs_hook=_object, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _unreadable(path, f"its header is not JSON ({reason(error)})") from None


def _entry(path: Path, name: str, fields: Any, expected: Shapes, dtypes: Collection[str]) -> Entry:
    if name not in expected:
        close = difflib.get_close_matches(name[:200], expected, 1)
        hint = f"; the nearest name is {close[0]!r}" if close else ""
        raise BundleError(f"{path} has a tensor {shown(name)}, which does not belong there{hint}.")
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise _unreadable(path, f"{name!r} should have a dtype, a shape and data_offsets alone")
    dtype, shape, offsets = fields["dtype"], fields["shape"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise BundleError(f"{name!r} of {path} has the dtype {shown(dtype)}; expected {' or '.join(dtypes)}.")
    if shape != list(expected[name]) or not all(type(size) is int for size in shape):
        raise BundleError(f"{name!r} of {path} has the shape {shown(shape)}; expected {list(expected[name])}.")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(type(offset) is int for offset in offsets):
        raise _unreadable(path, f"the data_offsets of {name!r} are {shown(offsets)}")
    begin, end = offsets
    kind, count = DTYPES[dtype], math.prod(expected[name])
    if begin < 0 or end - begin != count * kind.itemsize:
        raise _unreadable(
            path, f"{name!r} goes from {shown(begin)} to {shown(end)}, not over {count * kind.itemsize} bytes"
        )
    return Entry(name, kind, expected[name], begin, end)


def _unreadable(path: Path, reason: str) -> BundleError:
    return BundleError(f"{path} cannot be read as a safetensors file: {reason}.")
