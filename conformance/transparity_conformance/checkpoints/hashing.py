"""Identify the tensors of a checkpoint by dtype, shape and the sha256 of their bytes."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from transparity.text import reason
from transparity_conformance.checkpoints.reading import CheckpointError
from transparity_conformance.checkpoints.scaled import TensorBytes, tensor_bytes

PIECE = 2**24

Progress = Callable[[str, int, int], None]


def headers(where: Mapping[str, Path]) -> dict[str, TensorBytes]:
    return {name: tensor_bytes(path, name) for name, path in where.items()}


def hashes(tensors: Mapping[str, TensorBytes], progress: Progress) -> Iterator[tuple[str, str]]:
    """Yield the name and the sha256 of each tensor, file by file; raise `CheckpointError` if a file cannot be read."""
    files = list(dict.fromkeys(tensor.path for tensor in tensors.values()))
    for number, path in enumerate(files):
        progress(f"hashing {path.name}", number, len(files))
        try:
            with path.open("rb") as file:
                for name in (name for name, tensor in tensors.items() if tensor.path == path):
                    file.seek(tensors[name].begin)
                    yield name, _digest(file, path, tensors[name].size)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {reason(error)}.") from None


def _digest(file: BinaryIO, path: Path, size: int) -> str:
    found = hashlib.sha256()
    while size:
        piece = file.read(min(PIECE, size))
        if not piece:
            raise CheckpointError(f"{path} is truncated; expected {size} more bytes: copy the file again.")
        found.update(piece)
        size -= len(piece)
    return found.hexdigest()
