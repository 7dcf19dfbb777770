"""Right ways to read images and audio."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from meta.power.family_port import Config, FamilyFault, all_of, constantly, having, where
from meta.power.input_faults import convolution, flat, grid
from transparity_numpy import embeddings
from transparity_numpy.feed_forward import ACTIVATIONS

_PIXELS, _FRAMES = having("patch_size"), having("mel_bins")
_SINUSOIDS = all_of(_FRAMES, where(encoder_positions="sinusoidal"))


def styles() -> Iterator[FamilyFault]:
    convolved_at = "embeddings.convolved"
    for name, acts, place, function in (
        ("patches cut one by one", _PIXELS, "embeddings.patches", lambda config, pixels: flat(grid(config, pixels))),
        ("patches one by one", _PIXELS, "embeddings.embed_patches", one_by_one),
        ("patches as a convolution", _PIXELS, "embeddings.embed_patches", pixel_by_pixel),
        ("patches in float64", _PIXELS, "embeddings.embed_patches", in_float64(embeddings.embed_patches)),
        ("convolved frame by frame", _FRAMES, convolved_at, convolved),
        ("every second of all frames", _FRAMES, convolved_at, lambda p, x, stride: convolved(p, x, 1)[:, ::stride]),
        ("convolved in float64", _FRAMES, convolved_at, in_float64(embeddings.convolved)),
        ("convolved backwards", _FRAMES, convolved_at, convolved_backwards),
        ("convolved channels first", _FRAMES, convolved_at, convolved_channels_first),
        ("sinusoids in float32", _SINUSOIDS, "embeddings.sinusoidal_positions", sinusoids_in_float32),
    ):
        yield FamilyFault((), name, ".*", acts, exchanged={place: partial(constantly, function)})


def _with_class(config: Config, parameters: Mapping[str, Any], made: np.ndarray) -> np.ndarray:
    if not config.class_token:
        return made
    first = np.tile(parameters["class_embedding"]["weight"].reshape(1, 1, -1), (len(made), 1, 1))
    return np.concatenate([first, made], axis=1)


def one_by_one(config: Config, parameters: Mapping[str, Any], pixels: np.ndarray) -> np.ndarray:
    projection, cut = parameters["patch_projection"], flat(grid(config, pixels)).swapaxes(0, 1)
    made = [
        patch.astype(projection["weight"].dtype) @ projection["weight"].T + projection.get("bias", 0) for patch in cut
    ]
    return _with_class(config, parameters, np.stack(made, axis=1))


def pixel_by_pixel(config: Config, parameters: Mapping[str, Any], pixels: np.ndarray) -> np.ndarray:
    """A kernel with a stride of its size: the sum over its pixels of each one's colours times its weights."""
    projection, size = parameters["patch_projection"], config.patch_size or 1
    kernel = projection["weight"].reshape(config.embed_dim, config.image_channels, size, size)
    pixels = pixels.astype(kernel.dtype)
    made = sum(
        np.einsum("bchw,ec->bhwe", pixels[:, :, i::size, j::size], kernel[:, :, i, j])
        for i, j in np.ndindex(size, size)
    )
    made = np.asarray(made) + projection.get("bias", kernel.dtype.type(0))
    return _with_class(config, parameters, made.reshape(len(pixels), -1, config.embed_dim))


def in_float64(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The function, computed in float64 and rounded to the dtype of the parameters."""

    def upcast(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: upcast(each) for name, each in value.items()}
        return value.astype(np.float64) if isinstance(value, np.ndarray) else value

    def dtype(value: Mapping[str, Any]) -> Any:
        first = next(iter(value.values()))
        return dtype(first) if isinstance(first, Mapping) else first.dtype

    def wrapped(*given: Any, **further: Any) -> np.ndarray:
        parameters = next(each for each in given if isinstance(each, Mapping))
        return function(*map(upcast, given), **further).astype(dtype(parameters))

    return wrapped


def convolved(parameters: Mapping[str, np.ndarray], x: np.ndarray, stride: int) -> np.ndarray:
    kernel = parameters["weight"].reshape(len(parameters["weight"]), -1, 3)
    made: np.ndarray = ACTIVATIONS["gelu"](parameters["bias"] + convolution(x, kernel, stride))
    return made


def convolved_backwards(parameters: Mapping[str, np.ndarray], x: np.ndarray, stride: int) -> np.ndarray:
    """The same sums in the opposite order."""
    weight = parameters["weight"].reshape(len(parameters["weight"]), -1, 3)[:, ::-1]
    return convolved({**parameters, "weight": weight}, x[..., ::-1], stride)


def convolved_channels_first(parameters: Mapping[str, np.ndarray], x: np.ndarray, stride: int) -> np.ndarray:
    """(batch, features, frames), as PyTorch's convolutions have them."""
    kernel = parameters["weight"].reshape(len(parameters["weight"]), -1, 3)
    given = np.pad(x.swapaxes(1, 2), ((0, 0), (0, 0), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(given, 3, axis=2)[:, :, ::stride]
    made = np.einsum("bflw,ofw->bol", windows, kernel) + parameters["bias"][:, None]
    return np.asarray(ACTIVATIONS["gelu"](made)).swapaxes(1, 2)


def sinusoids_in_float32(length: int, dim: int, base: float, *_: Any) -> np.ndarray:
    """As OpenAI's code has it: the logarithm of the step, then its powers."""
    step = np.float32(math.log(base) / (dim // 2 - 1))
    rates = np.exp(-step * np.arange(dim // 2, dtype=np.float32))
    angles = np.arange(length, dtype=np.float32)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
