"""Untrusted files: only regular files are opened, and the size of a header is checked before it is read."""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from pathlib import Path
from typing import Any

from transparity.errors import TransparityError
from transparity.text import listed, reason

LARGEST_HEADER = 16 * 2**20
"""Largest size in bytes of a safetensors header.

The header of a model with 10,000 layers fits: 16 tensors per layer, with about 100 bytes per tensor.
"""


def file_size(path: str | os.PathLike[str], error: type[TransparityError]) -> int:
    """Return the size of a regular file; raise `error` for a pipe or a device, which may be endless."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        raise error(f"There is no file {path}.") from None
    except (OSError, ValueError, TypeError) as problem:
        raise error(f"{path} cannot be read: {reason(problem)}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise error(f"{path} is a folder; expected a file.")
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path} is not a file; expected a regular file.")
    return found.st_size


def read_header(path: str | os.PathLike[str], error: type[TransparityError]) -> tuple[int, dict[str, Any]]:
    """Return the offset in bytes of a safetensors file's data, and the header's entry for each tensor.

    Raise `error` unless `path` is a regular file with a header of at most `LARGEST_HEADER` bytes, which is a JSON
    object. The entries are not checked.
    """
    size = file_size(path, error)
    try:
        with Path(path).open("rb") as file:
            start = file.read(8)
            length = int.from_bytes(start, "little")
            header = file.read(min(length, LARGEST_HEADER, size))
    except OSError as problem:
        raise error(f"{path} cannot be read: {reason(problem)}.") from None
    if len(start) < 8 or length > size - 8:
        raise error(f"{path} cannot be read as a safetensors file: it is shorter than its header.")
    if length > LARGEST_HEADER:
        says = f"its header has {length} bytes; expected at most {LARGEST_HEADER}"
        raise error(f"{path} cannot be read as a safetensors file: {says}.")
    try:
        entries = json.loads(header, object_pairs_hook=without_repetition)
    except RepeatedFieldError as problem:
        raise error(f"{path} cannot be read as a safetensors file: {reason(problem)}.") from None
    except (ValueError, RecursionError):
        raise error(f"{path} cannot be read as a safetensors file: its header is not JSON.") from None
    if not isinstance(entries, dict):
        raise error(f"{path} cannot be read as a safetensors file: its header is not an object of tensors.")
    return 8 + length, {name: entry for name, entry in entries.items() if name != "__metadata__"}


class RepeatedFieldError(ValueError):
    """An error for a JSON object that repeats a field; Python's `json` would keep the last value."""


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dict; raise `RepeatedFieldError` if a field is repeated."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise RepeatedFieldError(f"a field is repeated: {listed([name for name in counts if counts[name] > 1])}")
    return fields
