"""Recognize the embedding of images or audio by value: patches or convolutions, class token, positions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.subject import ForeignError, RecordedCall
from transparity_conformance.identify.fitting.values.embedding import Embedding, positioned, sums_of
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.inputs.frames import convolved

USUAL_SIDES = (4, 2, 3, 5, 6, 7, 8, 14, 16)
"""Patches per side to try without a table of positions."""

USUAL_FRAMES = (32, *range(2, 64, 2), 3000)
"""Numbers of frames to try without a table of positions."""

TAPS = 3
"""Frames that a convolution over time reads."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A linear map of patches (features, channels · patch · patch); pixels are ordered by channel, row and column."""

    name: str
    matrix: np.ndarray
    channels: int
    patch: int

    def cut(self, pixels: np.ndarray) -> np.ndarray:
        batch, channels, height, width = pixels.shape
        size = self.patch
        parts = pixels.reshape(batch, channels, height // size, size, width // size, size)
        return parts.transpose(0, 2, 4, 1, 3, 5).reshape(batch, -1, channels * size * size)


def patch_kernels(values: Arrays) -> Iterator[Kernel]:
    """Yield the parameters that may map patches. For a matrix, try each order of axes, and 3 or 1 channels."""
    for name, value in values.items():
        if value.ndim == 4:
            for moved in (value, value.transpose(3, 2, 0, 1)):  # the layouts of PyTorch and flax
                if moved.shape[2] == moved.shape[3]:
                    yield Kernel(name, moved.reshape(len(moved), -1), moved.shape[1], moved.shape[2])
    for (name, value), channels in itertools.product(values.items(), (3, 1)):
        for matrix in (value, value.T) if value.ndim == 2 else ():
            patch = math.isqrt(matrix.shape[1] // channels)
            sizes = (channels, patch, patch)
            is_map = patch > 1 and math.prod(sizes) == matrix.shape[1]
            for order in itertools.permutations(range(3)) if is_map else ():
                stored = matrix.reshape(len(matrix), *(sizes[axis] for axis in order))
                moved = stored.transpose(0, *(1 + order.index(axis) for axis in range(3)))
                yield Kernel(name, moved.reshape(len(matrix), -1), channels, patch)


def image_shapes(values: Arrays) -> dict[tuple[int, int, int], None]:
    """Return possible image shapes (channels, height, width), the most likely first."""
    found: dict[tuple[int, int, int], None] = {}
    for kernel in patch_kernels(values):
        rows = [math.prod(each.shape[:-1]) for each in values.values() if each.shape[-1:] == kernel.matrix.shape[:1]]
        patches = [each for row in rows for each in (row - 1, row) if each > 0 and math.isqrt(each) ** 2 == each]
        for side in (*sorted({math.isqrt(each) for each in patches}, reverse=True), *USUAL_SIDES):
            found |= {(kernel.channels, side * kernel.patch, side * kernel.patch): None}
    return found


def convolutions(values: Arrays) -> Iterator[tuple[tuple[str, np.ndarray], tuple[str, np.ndarray]]]:
    """Yield pairs of parameters that may be successive kernels over time, as (features out, features in, 3)."""
    found = {name: value for name, value in values.items() if value.ndim == 3 and value.shape[2] == TAPS}
    others = {name: value for name, value in values.items() if value.ndim == 3 and name not in found}
    found |= {name: value.transpose(2, 1, 0) for name, value in others.items() if len(value) == TAPS}  # flax's layout
    for first, second in itertools.permutations(found.items(), 2):
        if second[1].shape[:2] == (len(first[1]), len(first[1])):
            yield first, second


def frame_shapes(values: Arrays, tables: Arrays) -> Iterator[tuple[int, int]]:
    """Yield possible spectrogram shapes (mel bins, frames), the most likely first; `tables` include buffers."""
    for (_, first), _ in convolutions(values):
        width = len(first)
        rows = {each.size // width for each in tables.values() if each.ndim > 1 and each.shape[-1] == width}
        for frames in (*(2 * each for each in sorted(rows)), *USUAL_FRAMES):
            yield first.shape[1], frames


def image_embedding(heard: RecordedCall, values: Arrays) -> Embedding:
    expected = "a linear map of square patches, an optional class token, and positions added before the first layer"
    return _placed(
        heard, values, _patches(heard, values), f"The image embedding was not recognized; expected {expected}."
    )


def frame_embedding(heard: RecordedCall, values: Arrays) -> Embedding:
    expected = "Whisper's: two convolutions of width 3 with strides 1 and 2, bias and GELU, then positions"
    return _placed(
        heard, values, _frames(heard, values), f"The audio embedding was not recognized; expected {expected}."
    )


def _placed(
    heard: RecordedCall, values: Arrays, readings: Iterator[tuple[Embedding, np.ndarray]], otherwise: str
) -> Embedding:
    for plain, x in readings:
        others = {name: value for name, value in values.items() if name not in plain.used}
        found = positioned(plain, sums_of(heard.operations, x, np.zeros_like(x), is_scaled=False), others)
        if found is not None:
            return found
    raise ForeignError(otherwise)


def _patches(heard: RecordedCall, values: Arrays) -> Iterator[tuple[Embedding, np.ndarray]]:
    """Yield possible embeddings without positions: the mapped patches, with or without a class token before them."""
    pixels = heard.inputs["pixels"].astype(np.float64)
    for kernel in patch_kernels(values):
        if pixels.shape[1] != kernel.channels or pixels.shape[2] % kernel.patch:
            continue
        made, width = kernel.cut(pixels) @ kernel.matrix.T, len(kernel.matrix)
        for bias in (*(name for name, value in values.items() if value.shape == (width,)), None):
            patches = made if bias is None else made + values[bias]
            if not heard.shows(patches):
                continue
            own = {"patch_projection.weight": kernel.matrix}
            own |= {} if bias is None else {"patch_projection.bias": values[bias]}
            tokens = (name for name, each in values.items() if each.size == width and name not in (kernel.name, bias))
            for token in (*tokens, None):
                first = np.empty((0, width)) if token is None else values[token].reshape(1, width)
                fields = {"patch_size": kernel.patch, "image_channels": kernel.channels}
                fields |= {"patch_bias": bias is not None, "class_token": token is not None}
                used = tuple(each for each in (kernel.name, bias, token) if each is not None)
                parameters = own if token is None else {**own, "class_embedding.weight": first}
                before = np.broadcast_to(first, (len(patches), *first.shape))
                yield Embedding(kernel.name, parameters, fields, used), np.concatenate([before, patches], axis=1)


def _frames(heard: RecordedCall, values: Arrays) -> Iterator[tuple[Embedding, np.ndarray]]:
    """Yield possible embeddings before the positions: frames after two convolutions."""
    frames = heard.inputs["source"].astype(np.float64).swapaxes(1, 2)
    fields = {"mel_bins": frames.shape[2], "num_frames": frames.shape[1]}
    for (first, one), (second, other) in convolutions(values):
        for x, before in _convolved(heard, frames, one, 1, values) if one.shape[1] == frames.shape[2] else ():
            for y, behind in _convolved(heard, x, other, 2, values):
                parameters = {"first_convolution.weight": one, "first_convolution.bias": values[before]}
                parameters |= {"second_convolution.weight": other, "second_convolution.bias": values[behind]}
                yield Embedding(first, parameters, fields, (first, second, before, behind)), y


def _convolved(
    heard: RecordedCall, x: np.ndarray, kernel: np.ndarray, stride: int, values: Arrays
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield (gelu(convolution(x) + bias), name of the bias) for each bias with which the module computes this value."""
    for name, bias in values.items():
        if bias.shape == (len(kernel),):
            made = convolved({"weight": kernel, "bias": bias}, x, stride)
            if heard.shows(made):
                yield made, name
