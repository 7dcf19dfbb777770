"""Kernels that may read patches of an image or frames of audio, and the shapes of inputs that fit them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from transparity_conformance.oracle.oracle import Arrays

CHANNELS = (3, 1)
"""Numbers of image channels to try if a matrix maps whole patches."""

USUAL_SIDES = (4, 2, 3, 5, 6, 7, 8, 14, 16)
"""Numbers of patches per side to try if no table of positions shows the number."""

USUAL_FRAMES = (32, *range(2, 64, 2), 3000)
"""Numbers of frames to try if no table of positions shows the number."""

TAPS = 3
"""The number of frames that a convolution over time reads."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A linear map of patches (features, channels · patch · patch).

    The pixels of a patch are ordered by channel, row and column.
    """

    name: str
    matrix: np.ndarray
    channels: int
    patch: int

    def cut(self, pixels: np.ndarray) -> np.ndarray:
        """Return the patches of images, as (batch, patches, numbers)."""
        batch, channels, height, width = pixels.shape
        size = self.patch
        parts = pixels.reshape(batch, channels, height // size, size, width // size, size)
        return parts.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


def patch_kernels(values: Arrays) -> Iterator[Kernel]:
    """Yield every parameter that may map patches: convolution kernels first, then matrices.

    The axes of a patch may have any order.
    """
    for name, value in values.items():
        if value.ndim == 4:
            for moved in (value, value.transpose(3, 2, 0, 1)):  # the layouts of PyTorch and flax
                if moved.shape[2] == moved.shape[3]:
                    yield Kernel(name, moved.reshape(len(moved), -1), moved.shape[1], moved.shape[2])
    for (name, value), channels in itertools.product(values.items(), CHANNELS):
        for matrix in (value, value.T) if value.ndim == 2 else ():
            patch = math.isqrt(matrix.shape[1] // channels)
            if patch > 1 and channels * patch * patch == matrix.shape[1]:
                yield from _in_every_order(name, matrix, channels, patch)


def _in_every_order(name: str, matrix: np.ndarray, channels: int, patch: int) -> Iterator[Kernel]:
    """Yield a matrix of patches, interpreted in each order of the axes (channels, height, width)."""
    sizes = (channels, patch, patch)
    for order in itertools.permutations(range(3)):
        stored = matrix.reshape(len(matrix), *(sizes[axis] for axis in order))
        moved = stored.transpose(0, *(1 + order.index(axis) for axis in range(3)))
        yield Kernel(name, moved.reshape(len(matrix), -1), channels, patch)


def image_shapes(values: Arrays) -> Iterator[tuple[int, int, int]]:
    """Yield shapes (channels, height, width) of images that a module may accept, most likely first."""
    found: dict[tuple[int, int, int], None] = {}
    for kernel in patch_kernels(values):
        rows = [math.prod(each.shape[:-1]) for each in values.values() if each.shape[-1:] == kernel.matrix.shape[:1]]
        patches = [each for row in rows for each in (row - 1, row) if each > 0 and math.isqrt(each) ** 2 == each]
        for side in (*sorted({math.isqrt(each) for each in patches}, reverse=True), *USUAL_SIDES):
            found |= {(kernel.channels, side * kernel.patch, side * kernel.patch): None}
    yield from found


def convolutions(values: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every kernel of a convolution over time, as (features out, features in, 3)."""
    for name, value in values.items():
        if value.ndim == 3 and value.shape[2] == TAPS:
            yield name, value
        elif value.ndim == 3 and value.shape[0] == TAPS:
            yield name, value.transpose(2, 1, 0)  # flax's layout


def frame_shapes(values: Arrays, tables: Arrays) -> Iterator[tuple[int, int]]:
    """Yield shapes (mel bins, frames) of spectrograms that a module may accept, most likely first.

    Args:
        values: the module's parameters.
        tables: the module's parameters and buffers, by name.
    """
    kernels = list(convolutions(values))
    for (_, first), (_, second) in itertools.permutations(kernels, 2):
        width = len(first)
        if second.shape[:2] != (width, width):
            continue
        rows = {each.size // width for each in tables.values() if each.ndim > 1 and each.shape[-1] == width}
        for frames in (*(2 * each for each in sorted(rows)), *USUAL_FRAMES):
            yield first.shape[1], frames
