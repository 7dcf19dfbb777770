"""Read untrusted files: check the size before reading, and accept only strict JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from transparity.errors import TransparityError
from transparity.limits import files
from transparity.text import reason

LARGEST_JSON = 16 * 2**20


class BundleError(TransparityError):
    """A bundle is invalid, or a port wrote invalid output for a bundle."""


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a file. Raise `BundleError` for a pipe, a device, or a file of more than `most` bytes."""
    if (size := files.file_size(path, BundleError)) > most:
        raise BundleError(f"{path} has {size} bytes; expected at most {most}.")
    try:
        with path.open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {reason(error)}.") from None


def parse_json(path: Path, text: bytes, constant: Callable[[str], Any] | None = None) -> Any:
    """Parse JSON. Raise `BundleError` for a repeated field and, without `constant`, for NaN and ±Infinity."""
    try:
        return json.loads(
            text.decode("utf-8"), object_pairs_hook=files.without_repetition, parse_constant=constant or refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise BundleError(f"{path} is not JSON: {reason(error)}.") from None


def refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
