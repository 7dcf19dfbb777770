"""Experts in MXFP4, which files store as two tensors of bytes, read as one tensor with all experts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from transparity.limits.mapped import Mapped
from transparity.limits.scaled import BLOCK, MXFP4, Stored, first_byte
from transparity.text import reason, shown
from transparity_conformance.checkpoints.reading import UNREADABLE, CheckpointError

BLOCKS, SCALES = "_blocks", "_scales"
"""The suffixes of both tensors: numbers of 4 bits, and one exponent for each block of them."""


def unpacked_files(where: Mapping[str, Path]) -> dict[str, Path]:
    """Return the file of every tensor; the two tensors of MXFP4 experts become one entry."""
    names = [name.removesuffix(BLOCKS) for name in where if name.endswith(BLOCKS)]
    whole = {name: where[name + BLOCKS] for name in names if name + SCALES in where}
    bytes_of = {name + ending for name in whole for ending in (BLOCKS, SCALES)}
    return {name: path for name, path in where.items() if name not in bytes_of} | whole


@dataclass(frozen=True, eq=False)
class PackedExperts:
    """The MXFP4 matrices of all experts, (experts, in, out), which NumPy reads as an array.

    The matrix of one expert, or every n-th of its output features, can stay in the file.
    """

    name: str
    blocks: Stored
    """The numbers as bytes, (experts, out, in / 32, 16)."""
    scales: Stored
    """The exponents as bytes, (experts, out, in / 32)."""
    shape: tuple[int, int, int]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, index: Any) -> Any:
        is_cut = isinstance(index, tuple) and len(index) == 3 and index[1] is Ellipsis
        if not is_cut or not isinstance(index[0], int) or not isinstance(index[2], slice):
            return np.asarray(self)[index]
        count, wide, high = self.shape
        first, stop, step = index[2].indices(high)
        shape = (len(range(first, stop, step)), wide)
        matrix = MXFP4(self.blocks, self.scales, shape, range(count)[index[0]] * high + first, step)
        return Mapped(self.blocks.path, self.name, shape, scaled=matrix).T

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.stack([np.asarray(self[expert, ..., :], dtype) for expert in range(self.shape[0])])


def load_experts(where: Mapping[str, Path], names: Collection[str], *, in_place: bool) -> dict[str, Any]:
    """Load the tensors `names` as float32, or leave them in their files if `in_place`.

    Raises `CheckpointError` for a dtype or shape that MXFP4 does not have.
    """
    found = {name: _opened(where, name) for name in names}
    return dict(found) if in_place else {name: np.asarray(experts) for name, experts in found.items()}


def _opened(where: Mapping[str, Path], name: str) -> PackedExperts:
    blocks, scales = (_shape(where[name + ending], name + ending) for ending in (BLOCKS, SCALES))
    if len(blocks) != 4 or blocks[-1] != BLOCK // 2 or scales != blocks[:3]:
        raise CheckpointError(
            f"{shown(name + BLOCKS)} and {shown(name + SCALES)} of {where[name + BLOCKS]} have the shapes "
            f"{shown(blocks)} and {shown(scales)}; expected (experts, out, in / {BLOCK}, {BLOCK // 2}), and the same "
            "shape without the last axis."
        )
    places = [
        Stored(where[name + ending], first_byte(where[name + ending], name + ending)) for ending in (BLOCKS, SCALES)
    ]
    return PackedExperts(name, places[0], places[1], (blocks[0], blocks[2] * BLOCK, blocks[1]))


def _shape(path: Path, name: str) -> tuple[int, ...]:
    try:
        with safe_open(path, framework="numpy") as file:
            found = file.get_slice(name)
            dtype, shape = found.get_dtype(), tuple(found.get_shape())
    except UNREADABLE as error:
        raise CheckpointError(f"{path} cannot be read as a safetensors file: {reason(error)}.") from None
    if dtype != "U8":
        raise CheckpointError(f"{shown(name)} of {path} has the dtype {dtype}; expected U8, the bytes of MXFP4.")
    return shape
