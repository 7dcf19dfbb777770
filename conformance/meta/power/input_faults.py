"""Mistakes in how images and audio are read, as a port makes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from meta.power.family_port import (
    Acts,
    Arrays,
    Config,
    FamilyFault,
    Wrong,
    all_of,
    constantly,
    fields_to,
    having,
    replaced,
    where,
)
from transparity_numpy import embeddings
from transparity_numpy.feed_forward import ACTIVATIONS

PATCHES, FIRST, SECOND = r"encoder\.embedding", r"encoder\.first_convolution", r"encoder\.second_convolution"
CONVOLVED = rf"{FIRST}|{SECOND}"

_PIXELS, _FRAMES = having("patch_size"), having("mel_bins")
_CLASSED = all_of(_PIXELS, having("class_token"))
_SINUSOIDS = all_of(_FRAMES, where(encoder_positions="sinusoidal"))


def faults() -> Iterator[FamilyFault]:
    yield from _patch_faults()
    yield from _frame_faults()
    yield from _position_faults()
    yield from _tower_faults()


def grid(config: Config, pixels: np.ndarray) -> np.ndarray:
    """The image as (batch, rows of patches, columns of patches, channels, rows, columns)."""
    size = config.patch_size or 1
    rows = [np.split(row, pixels.shape[3] // size, axis=3) for row in np.split(pixels, pixels.shape[2] // size, axis=2)]
    return np.stack([np.stack(row, axis=1) for row in rows], axis=1)


def flat(grid: np.ndarray) -> np.ndarray:
    return grid.reshape(len(grid), grid.shape[1] * grid.shape[2], -1)


def _patched(change: Callable[[np.ndarray], np.ndarray]) -> dict[str, Wrong]:
    """Patches of another grid."""
    return {"embeddings.patches": partial(constantly, lambda config, pixels: flat(change(grid(config, pixels))))}


def _patch_faults() -> Iterator[FamilyFault]:
    coloured: Acts = all_of(_PIXELS, lambda config: config.image_channels > 1)
    for identity, name, acts, change in (
        ("patch-order", "columns of patches", _PIXELS, lambda grid: grid.swapaxes(1, 2)),
        ("patch-order", "from below", _PIXELS, lambda grid: grid[:, ::-1]),
        ("patch-layout", "columns of pixels", _PIXELS, lambda grid: grid.swapaxes(4, 5)),
        ("patch-layout", "channels last", coloured, lambda grid: np.moveaxis(grid, 3, 5)),
        ("patch-layout", "blue first", coloured, lambda grid: grid[:, :, :, ::-1]),
    ):
        yield FamilyFault((identity,), name, PATCHES, acts, exchanged=_patched(change))
    yield FamilyFault(("class-token",), "last", PATCHES, _CLASSED, exchanged=_embedded(_class_last))
    learned = all_of(_CLASSED, where(positions="learned"))
    yield FamilyFault(("class-token",), "without position", PATCHES, learned, parameters=_positions_behind)
    scaled = _embedded(lambda config, x: x * x.dtype.type(math.sqrt(config.embed_dim)))
    yield FamilyFault(("embedding-scale",), "of patches", PATCHES, _PIXELS, exchanged=scaled)
    unbiased = replaced(lambda name, x: x * 0 if name.endswith("patch_projection.bias") else x)
    yield FamilyFault(("bias-dropped",), "patches", PATCHES, all_of(_PIXELS, having("patch_bias")), parameters=unbiased)


def _embedded(change: Callable[[Config, np.ndarray], np.ndarray]) -> dict[str, Wrong]:
    """The patches as vectors, changed before positions are added."""
    right = embeddings.embed_patches
    return {
        "embeddings.embed_patches": partial(constantly, lambda config, *given: change(config, right(config, *given)))
    }


def _class_last(config: Config, x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:, 1:], x[:, :1]], axis=1)


def _positions_behind(config: Config, parameters: Arrays) -> Arrays:
    """The patches have the positions from the first on; the class token has none."""
    name = "encoder.position_embedding.weight"
    return parameters | {name: np.concatenate([0 * parameters[name][:1], parameters[name][:-1]])}


def _given(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Config, Arrays], Arrays]:
    return lambda config, inputs: inputs | {"source": change(inputs["source"])}


def _kernels(change: Callable[[np.ndarray], np.ndarray], which: str) -> Callable[[Config, Arrays], Arrays]:
    """The kernels (features_out, features_in, 3) of one convolution or of both, changed."""

    def changed(name: str, x: np.ndarray) -> np.ndarray:
        if not name.endswith(f"{which}_convolution.weight"):
            return x
        return change(x.reshape(len(x), -1, 3)).reshape(len(x), -1)

    return replaced(changed)


def _scaled_frames(parameters: Any, frames: np.ndarray, tap: Any) -> np.ndarray:
    x: np.ndarray = _EMBED_FRAMES(parameters, frames, tap)
    return x * x.dtype.type(math.sqrt(x.shape[-1]))


_EMBED_FRAMES = embeddings.embed_frames


def _frame_faults() -> Iterator[FamilyFault]:
    scaled: dict[str, Wrong] = {"embeddings.embed_frames": partial(constantly, _scaled_frames)}
    yield FamilyFault(("embedding-scale",), "of frames", r"encoder\.embedding", _FRAMES, exchanged=scaled)
    for name, change in (
        ("reshaped", lambda mel: mel.reshape(len(mel), mel.shape[2], -1).swapaxes(1, 2)),
        ("high bins first", lambda mel: mel[:, ::-1]),
        ("last frame first", lambda mel: mel[..., ::-1]),
    ):
        yield FamilyFault(("frame-layout",), name, FIRST, _FRAMES, inputs=_given(change))
    for which, place in (("first", FIRST), ("second", SECOND), ("", CONVOLVED)):
        both = which or "both"
        turned, mixed = (
            lambda kernel: kernel[..., ::-1],
            lambda kernel: kernel.reshape(len(kernel), 3, -1).swapaxes(1, 2),
        )
        yield FamilyFault(
            ("convolution-kernel",), f"turned, {both}", place, _FRAMES, parameters=_kernels(turned, which)
        )
        yield FamilyFault(("convolution-kernel",), f"mixed, {both}", place, _FRAMES, parameters=_kernels(mixed, which))
        dropped = replaced(lambda name, x, which=which: x * 0 if name.endswith(f"{which}_convolution.bias") else x)  # type: ignore[misc]
        if which:
            yield FamilyFault(("bias-dropped",), f"{which} convolution", place, _FRAMES, parameters=dropped)
        for name, padded in PADDINGS.items():
            wrong = _convolutions(which, padded=padded)
            yield FamilyFault(("convolution-padding",), f"{name}, {both}", place, _FRAMES, exchanged=wrong)
        for name in ("relu", "gelu-tanh", "silu"):
            wrong = _convolutions(which, activation=ACTIVATIONS[name])
            yield FamilyFault(("convolution-activation",), f"{name}, {both}", place, _FRAMES, exchanged=wrong)
        wrong = _convolutions(which, activation=lambda x: x)
        yield FamilyFault(("convolution-activation",), f"none, {both}", place, _FRAMES, exchanged=wrong)
    swapped = _convolutions("", strides=(2, 1))
    yield FamilyFault(("convolution-stride",), "exchanged", CONVOLVED, _FRAMES, exchanged=swapped)


PADDINGS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "causal": lambda x: np.concatenate([0 * x[:, :1], 0 * x[:, :1], x], axis=1),
    "behind": lambda x: np.concatenate([x, 0 * x[:, :1], 0 * x[:, :1]], axis=1),
    "replicated": lambda x: np.concatenate([x[:, :1], x, x[:, -1:]], axis=1),
    "circular": lambda x: np.concatenate([x[:, -1:], x, x[:, :1]], axis=1),
}
"""Frames with two more, other than one of zeros at either end."""


def _zeros_around(x: np.ndarray) -> np.ndarray:
    return np.concatenate([0 * x[:, :1], x, 0 * x[:, :1]], axis=1)


def convolution(
    x: np.ndarray, kernel: np.ndarray, stride: int, padded: Callable[[np.ndarray], np.ndarray] = _zeros_around
) -> np.ndarray:
    """The convolution of (batch, frames, features_in) as the products of three frames with (features_out, ·, 3)."""
    x = padded(x)
    at = range(0, x.shape[1] - 2, stride)
    return np.stack([sum(x[:, i + j] @ kernel[..., j].T for j in range(3)) for i in at], axis=1)


def _convolutions(
    which: str,
    padded: Callable[[np.ndarray], np.ndarray] = _zeros_around,
    activation: Callable[[Any], Any] = ACTIVATIONS["gelu"],
    strides: tuple[int, int] = (1, 2),
) -> dict[str, Wrong]:
    """The first convolution, the second or both, with something else about them."""
    right = embeddings.convolved

    def convolved(parameters: Mapping[str, np.ndarray], x: np.ndarray, stride: int) -> np.ndarray:
        if which not in ("", ("first", "second")[stride - 1]):
            return right(parameters, x, stride)
        kernel = parameters["weight"].reshape(len(parameters["weight"]), -1, 3)
        made: np.ndarray = activation(convolution(x, kernel, strides[stride - 1], padded) + parameters["bias"])
        return made

    return {"embeddings.convolved": partial(constantly, convolved)}


def _tower_faults() -> Iterator[FamilyFault]:
    """CLIP: which position of a text is pooled, and the norms around the layers of an image."""
    by_token: Acts = lambda config: config.is_pooled and config.pooling in ("eos", "largest")  # noqa: E731

    def last(config: Config, x: Any, visible: Any, tokens: Any) -> Any:
        ends = tokens == (config.eos_id if config.pooling == "eos" else tokens.max(1, keepdims=True))
        return x[np.arange(len(x)), x.shape[1] - 1 - ends[:, ::-1].argmax(1)]

    def largest(config: Config, x: Any, visible: Any, tokens: Any) -> Any:
        return x[np.arange(len(x)), tokens.argmax(1)]

    def before(config: Config, x: Any, visible: Any, tokens: Any) -> Any:
        return x[np.arange(len(x)), np.maximum((tokens == config.eos_id).argmax(1) - 1, 0)]

    place, ends = r"pooled|logits", all_of(by_token, where(pooling="eos"))
    for name, acts, pool in (("last end", by_token, last), ("largest", ends, largest), ("before", ends, before)):
        wrong: dict[str, Wrong] = {"transformer.pool": partial(constantly, pool)}
        yield FamilyFault(("pooling",), f"{name}, by tokens", place, acts, exchanged=wrong)
    pooled: Acts = lambda config: config.is_pooled and config.final_norm and config.reads_pixels  # noqa: E731
    place = r"encoder\.output|pooled|logits"
    yield FamilyFault(("norm-missing",), "behind the tower", place, pooled, fields_to(final_norm=False))


def _position_faults() -> Iterator[FamilyFault]:
    def table(change: Callable[..., Any]) -> dict[str, Wrong]:
        return {"embeddings.sinusoidal_positions": partial(constantly, change)}

    def angles(length: int, dim: int, base: float, steps: float) -> np.ndarray:
        return np.outer(np.arange(length), [base ** (-pair / steps) for pair in range(dim // 2)])

    def in_halves(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.sin(x), np.cos(x)], axis=1)

    place = r"encoder\.embedding"
    for identity, name, change in (
        ("position-layout", "in turn", lambda n, d, base, *_: _in_turn(angles(n, d, base, d // 2 - 1))),
        (
            "position-layout",
            "cosines first",
            lambda n, d, base, *_: np.roll(in_halves(angles(n, d, base, d // 2 - 1)), d // 2, 1),
        ),
        ("position-frequency", "half the width", lambda n, d, base, *_: in_halves(angles(n, d, base, d // 2))),
        ("position-frequency", "base 1000", lambda n, d, base, *_: in_halves(angles(n, d, 1000.0, d // 2 - 1))),
        ("position-offset", "from 1", lambda n, d, base, *_: in_halves(angles(n + 1, d, base, d // 2 - 1))[1:]),
    ):
        yield FamilyFault((identity,), f"{name}, of frames", place, _SINUSOIDS, exchanged=table(change))


def _in_turn(angles: np.ndarray) -> np.ndarray:
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(angles), -1)
