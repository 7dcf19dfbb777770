"""Matrices in float8, as in Hugging Face checkpoints: each number is multiplied by the scale of its block.

The safetensors library cannot return float8 as NumPy arrays, so this module reads the bytes.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

DTYPES = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""The float8 dtypes of safetensors, with their names in `ml_dtypes`."""


@dataclass(frozen=True, eq=False)
class Float8:
    """A float8 matrix in a safetensors file.

    Args:
        path: the file.
        begin: the offset of its first byte in the file.
        shape: the numbers of rows and columns.
        dtype: its dtype, one of the values of `DTYPES`.
        scale: the factor of each block, a float32 matrix.
        block: the numbers of rows and columns of a block; the last blocks may be smaller.
    """

    path: str | os.PathLike[str]
    begin: int
    shape: tuple[int, int]
    dtype: str
    scale: np.ndarray
    block: tuple[int, int]

    def rows(self, place: slice) -> np.ndarray:
        """Read some rows as float32; each product with a scale is rounded once."""
        import ml_dtypes  # imported here, because the command line rarely needs it

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
