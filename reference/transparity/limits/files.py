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
"""The largest header of a safetensors file, in bytes: a tensor takes about 100, and a model of 10,000 layers, the most
that a configuration may have, 16 tensors a layer."""


def file_size(path: str | os.PathLike[str], error: type[TransparityError]) -> int:
    """Return the size of a regular file; raise `error` for others, because a pipe or a device may be endless."""
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


def is_folder(path: Path) -> bool:
    """Return whether the folder exists; False for a path that is invalid on every system."""
    return _mode(path, stat.S_IFDIR)


def is_file(path: Path) -> bool:
    """Return whether the regular file exists; False for a path that is invalid on every system."""
    return _mode(path, stat.S_IFREG)


def _mode(path: Path, kind: int) -> bool:
    try:
        return stat.S_IFMT(path.stat().st_mode) == kind
    except (OSError, ValueError):
        return False


def check_header(path: str | os.PathLike[str], error: type[TransparityError], most: int = LARGEST_HEADER) -> None:
    """Raise `error` unless `path` is a regular file with a safetensors header of at most `most` bytes."""
    size = file_size(path, error)
    try:
        with Path(path).open("rb") as file:
            start = file.read(8)
    except OSError as problem:
        raise error(f"{path} cannot be read: {reason(problem)}.") from None
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > size - 8:
        raise error(f"{path} cannot be read as a safetensors file: it is shorter than its header.")
    if length > most:
        raise error(
            f"{path} cannot be read as a safetensors file: its header has {length} bytes; expected at most {most}."
        )
    try:
        with Path(path).open("rb") as file:
            json.loads(file.read(8 + length)[8:], object_pairs_hook=without_repetition)
    except RepeatedFieldError as problem:
        raise error(f"{path} cannot be read as a safetensors file: {problem}.") from None
    except (OSError, ValueError, RecursionError):  # the library says what is wrong with it
        pass


class RepeatedFieldError(ValueError):
    """A JSON object repeats a field; `json` would keep the last one."""


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object; raise `RepeatedFieldError` for repeated fields."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise RepeatedFieldError(f"a field is repeated: {listed([name for name in counts if counts[name] > 1])}")
    return fields
