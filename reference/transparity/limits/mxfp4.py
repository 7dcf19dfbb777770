"""Matrices in MXFP4, the format of gpt-oss's experts: four bits per number, and one exponent per block of 32 columns.

A number is ±0, 0.5, 1, 1.5, 2, 3, 4 or 6 (e2m1) times 2^(scale − 127): OCP Microscaling Formats 1.0, §5.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The number for each four-bit code; the highest bit is the sign."""

BYTES = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], axis=-1)
"""The two numbers of each byte: the lower half is the first."""

BIAS = 127
"""The bias of a scale's exponent: its byte 127 is 2⁰."""

BLOCK = 32
"""The number of columns that share a scale."""


@dataclass(frozen=True)
class Stored:
    """A tensor of bytes in a safetensors file: the file, and the offset of the first byte."""

    path: str | os.PathLike[str]
    begin: int

    def read(self, first: int, count: int) -> np.ndarray:
        """Read `count` bytes, starting at `first`."""
        with Path(self.path).open("rb") as file:
            file.seek(self.begin + first)
            return np.frombuffer(file.read(count), np.uint8)


@dataclass(frozen=True, eq=False)
class MXFP4:
    """A matrix in MXFP4: every `step`-th row, starting at `first`, of two tensors in safetensors files.

    Args:
        blocks: the numbers, two in a byte: (rows, columns / 2).
        scales: the exponents: (rows, columns / 32).
        shape: rows and columns of the matrix.
        first, step: its rows in the two tensors.
    """

    blocks: Stored
    scales: Stored
    shape: tuple[int, int]
    first: int = 0
    step: int = 1

    def rows(self, place: slice) -> np.ndarray:
        """Read some rows in float32, which is exact except for the smallest exponents."""
        first, wide = self.first + place.start * self.step, self.shape[1]
        count = max(0, (place.stop - place.start - 1) * self.step + 1)
        packed = self.blocks.read(first * wide // 2, count * wide // 2).reshape(count, wide // 2)[:: self.step]
        scales = self.scales.read(first * wide // BLOCK, count * wide // BLOCK).reshape(count, -1)[:: self.step]
        numbers = BYTES[packed].reshape(*scales.shape, BLOCK)
        return np.ldexp(numbers, scales.astype(np.int32)[..., np.newaxis] - BIAS).reshape(len(packed), wide)
