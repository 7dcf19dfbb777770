"""Identify the input layers of an image or audio encoder by value: patches or convolutions, class token, positions."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from transparity_conformance.identify.fitting.calls.kernels import Kernel, convolutions, patch_kernels
from transparity_conformance.identify.fitting.subject import ForeignError, RecordedCall
from transparity_conformance.identify.fitting.values.embedding import Embedding, positioned, sums_of
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.inputs.frames import convolved


def image_embedding(heard: RecordedCall, values: Arrays) -> Embedding:
    """Return the embedding of images before the first layer."""
    pixels = heard.inputs["pixels"].astype(np.float64)
    for kernel in patch_kernels(values):
        if pixels.shape[1] != kernel.channels or pixels.shape[2] % kernel.patch:
            continue
        made = kernel.cut(pixels) @ kernel.matrix.T
        vectors = [name for name, value in values.items() if value.shape == made.shape[-1:]]
        for bias in (*vectors, None):
            patches = made if bias is None else made + values[bias]
            if not heard.shows(patches):
                continue
            found = _with_class_token(kernel, bias, patches, heard.operations, values)
            if found is not None:
                return found
    raise ForeignError(
        "The image embedding was not recognized; expected a linear map of square patches, an optional class token, and "
        "positions added before the first layer."
    )


def _with_class_token(
    kernel: Kernel, bias: str | None, patches: np.ndarray, operations: Sequence[Operation], values: Arrays
) -> Embedding | None:
    """Return the embedding of patches, with or without one of the module's vectors as the class token."""
    width = patches.shape[-1]
    others = {name: each for name, each in values.items() if name not in (kernel.name, bias)}
    vectors = [name for name, each in others.items() if each.size == width]
    parameters = {"patch_projection.weight": kernel.matrix}
    parameters |= {} if bias is None else {"patch_projection.bias": values[bias]}
    fields = {"patch_size": kernel.patch, "image_channels": kernel.channels, "patch_bias": bias is not None}
    for name in (*vectors, None):
        token = () if name is None else (np.broadcast_to(values[name].reshape(width), (len(patches), 1, width)),)
        x = np.concatenate([*token, patches], axis=1)
        own = {} if name is None else {"class_embedding.weight": values[name].reshape(1, width)}
        tables = {each: value for each, value in tables_of(others, width).items() if each != name}
        found = positioned(kernel.name, sums_of(operations, x, np.zeros_like(x), is_scaled=False), tables)
        if found is not None:
            used = tuple(each for each in (kernel.name, bias, name) if each is not None)
            return found.of_signal(parameters | own, fields | {"class_token": name is not None}, used)
    return None


def frame_embedding(heard: RecordedCall, values: Arrays) -> Embedding:
    """Return the embedding of frames of audio before the encoder's first layer."""
    frames = heard.inputs["source"].astype(np.float64).swapaxes(1, 2)
    kernels = list(convolutions(values))
    for (first, one), (second, other) in itertools.permutations(kernels, 2):
        if one.shape[1] != frames.shape[2] or other.shape[1] != len(one):
            continue
        for x, before in _convolved(heard, frames, one, 1, values):
            for y, behind in _convolved(heard, x, other, 2, values):
                names = (first, second, before, behind)
                tables = tables_of({each: value for each, value in values.items() if each not in names}, y.shape[-1])
                found = positioned(first, sums_of(heard.operations, y, np.zeros_like(y), is_scaled=False), tables)
                if found is not None:
                    parameters = _parameters("first", one, values[before])
                    parameters |= _parameters("second", other, values[behind])
                    fields = {"mel_bins": frames.shape[2], "num_frames": frames.shape[1]}
                    return found.of_signal(parameters, fields, names)
    raise ForeignError(
        "The audio embedding was not recognized; expected Whisper's: two convolutions of width 3 with strides 1 and 2, "
        "bias and GELU, then positions."
    )


def _convolved(
    heard: RecordedCall, x: np.ndarray, kernel: np.ndarray, stride: int, values: Arrays
) -> Iterator[tuple[np.ndarray, str]]:
    """Yield GELU of each convolution of `x` that an operation computes, with the name of its bias."""
    for name, bias in values.items():
        if bias.shape == (len(kernel),):
            made = convolved({"weight": kernel.reshape(len(kernel), -1), "bias": bias}, x, stride)
            if heard.shows(made):
                yield made, name


def _parameters(which: str, kernel: np.ndarray, bias: np.ndarray) -> Arrays:
    return {f"{which}_convolution.weight": kernel.reshape(len(kernel), -1), f"{which}_convolution.bias": bias}


def tables_of(values: Arrays, width: int) -> Arrays:
    """Return the parameters that may be tables of positions, as matrices with `width` columns."""
    return {name: value.reshape(-1, width) for name, value in values.items() if value.shape[-1:] == (width,)}
