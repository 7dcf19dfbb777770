"""Matrices in float8 with scales, as in hub checkpoints: each number times the scale of its block.

The safetensors library does not give NumPy float8, so the bytes are read here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DTYPES = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""Their names in `ml_dtypes`."""


@dataclass(frozen=True, eq=False)
class Float8:
    """A float8 matrix in a safetensors file.

    Args:
        path: the file.
        begin: its first byte in the file.
        shape: rows and columns.
        dtype: the name of one of `DTYPES`.
        scale: the factors, float32, one for each block of rows and columns.
        block: the rows and the columns of a block; those at the end may have fewer.
    """

    path: str | os.PathLike[str]
    begin: int
    shape: tuple[int, int]
    dtype: str
    scale: np.ndarray
    block: tuple[int, int]

    def rows(self, place: slice) -> np.ndarray:
        """Read some rows in float32: each product is rounded once."""
        import ml_dtypes  # late, for the command line does not need it

        count, width = place.stop - place.start, self.shape[1]
        with Path(self.path).open("rb") as file:
            file.seek(self.begin + place.start * width)
            value = np.frombuffer(file.read(count * width), getattr(ml_dtypes, self.dtype)).reshape(count, width)
        high, wide = self.block
        factors = self.scale[np.arange(place.start, place.stop) // high]
        return value.astype(np.float32) * factors[:, np.arange(width) // wide]


def first_byte(path: str | os.PathLike[str], name: str) -> int:
    """Return the offset of a tensor in a safetensors file whose header was checked."""
    with Path(path).open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        begin: int = json.loads(file.read(length))[name]["data_offsets"][0]
    return 8 + length + begin
