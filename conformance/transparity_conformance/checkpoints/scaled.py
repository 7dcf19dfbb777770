"""Matrices in float8 and MXFP4, as in Hugging Face checkpoints: each number is multiplied by the scale of its block.

The safetensors library cannot return scaled matrices as NumPy arrays, so this file reads the bytes. In float8, a scale
is a float32 number. MXFP4 is the format of gpt-oss's experts: four bits per number, and an exponent for each 32
columns. A number is ± 0, 0.5, 1, 1.5, 2, 3, 4 or 6 (e2m1) times 2^(scale − 127) (OCP Microscaling Formats 1.0, §5).
"""

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from transparity.limits.files import read_header
from transparity_conformance.checkpoints.files import BundleError


@dataclass(frozen=True)
class TensorBytes:
    """The entry of a tensor in the header of a safetensors file."""

    path: Path
    dtype: str
    shape: list[int]
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    def read(self, first: int, count: int) -> np.ndarray:
        with self.path.open("rb") as file:
            file.seek(self.begin + first)
            return np.frombuffer(file.read(count), np.uint8)


def tensor_bytes(path: Path, name: str) -> TensorBytes:
    found = path.stat()
    return _entries(path, found.st_mtime_ns, found.st_size)[name]


@functools.lru_cache(maxsize=128)  # a checkpoint has many tensors, whose files may alternate
def _entries(path: Path, changed: int, size: int) -> dict[str, TensorBytes]:
    length, entries = read_header(path, BundleError)
    return {
        name: TensorBytes(path, entry["dtype"], entry["shape"], *(length + each for each in entry["data_offsets"]))
        for name, entry in entries.items()
    }


DTYPES = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
"""The float8 dtypes of safetensors, with their names in `ml_dtypes`."""


def float8_rows(numbers: TensorBytes, scale: np.ndarray, block: tuple[int, int], place: slice) -> np.ndarray:
    """Read some rows of a float8 matrix as float32. Each number is multiplied by the `scale` of its `block` (rows,
    columns); the product is rounded once."""
    import ml_dtypes  # imported here, because the command line rarely needs it

    (count, width), (high, wide) = (place.stop - place.start, numbers.shape[1]), block
    stored = numbers.read(place.start * width, count * width)
    value = stored.view(getattr(ml_dtypes, DTYPES[numbers.dtype])).reshape(count, width)
    factors = scale[np.arange(place.start, place.stop) // high]
    return value.astype(np.float32) * factors[:, np.arange(width) // wide]


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""The number that each four-bit code stands for; the highest bit is the sign."""

BYTES = np.stack([E2M1[np.arange(256) & 15], E2M1[np.arange(256) >> 4]], axis=-1)
"""The two numbers that each byte stands for; the lower four bits are the first number."""

BIAS = 127
"""The exponent bias of a scale: the byte 127 means 2⁰."""

BLOCK = 32


def mxfp4_rows(blocks: TensorBytes, scales: TensorBytes, wide: int, begin: int, step: int, place: slice) -> np.ndarray:
    """Read the rows begin, begin + step, … of an MXFP4 matrix with `wide` columns as float32. The numbers are exact,
    except for the smallest exponents."""
    first, count = begin + place.start * step, max(0, (place.stop - place.start - 1) * step + 1)
    packed = blocks.read(first * wide // 2, count * wide // 2).reshape(count, wide // 2)[::step]
    exponents = scales.read(first * wide // BLOCK, count * wide // BLOCK).reshape(count, -1)[::step]
    numbers = BYTES[packed].reshape(*exponents.shape, BLOCK)
    return np.ldexp(numbers, exponents.astype(np.int32)[..., np.newaxis] - BIAS).reshape(len(packed), wide)
