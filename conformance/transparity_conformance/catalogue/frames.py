"""Faults of the convolutions over frames of audio: their kernels, ends, strides and activations, and the layout of the
frames. A bias of the keys, which Whisper does not have, is no fault: it moves all scores of a query alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState
from transparity_conformance.catalogue.residuals_and_activations import ACTIVATIONS
from transparity_conformance.catalogue.sites import Value

FIRST = "encoder.first_convolution"
SECOND = "encoder.second_convolution"

Frames = Callable[[np.ndarray], np.ndarray]
"""From what is given (batch, mel_bins, frames) to what the first convolution reads (batch, frames, mel_bins)."""

LAYOUTS: Mapping[str, tuple[str, Frames]] = {
    "reshaped": (
        "the spectrogram is reshaped to (frames, mel_bins), not transposed",
        lambda given: given.reshape(len(given), given.shape[2], given.shape[1]),
    ),
    "mel bins turned": (
        "the mel bins are in the opposite order, from high to low",
        lambda given: given[:, ::-1].swapaxes(1, 2),
    ),
    "frames turned": ("the frames are in the opposite order", lambda given: given[:, :, ::-1].swapaxes(1, 2)),
}

Kernel = Callable[[np.ndarray], np.ndarray]
"""From the right kernel (features_out, features_in, 3) to the wrong one."""

KERNELS: Mapping[str, tuple[str, Kernel]] = {
    "turned": (
        "the kernel is turned in time: its last column meets the earliest frame",
        lambda kernel: kernel[..., ::-1],
    ),
    "reshaped": (
        "the kernel is reshaped from (features_out, 3, features_in), not from (features_out, features_in, 3)",
        lambda kernel: kernel.reshape(len(kernel), 3, -1).swapaxes(1, 2),
    ),
}

Ends = Callable[[np.ndarray], np.ndarray]
"""From frames (batch, frames, features) to those with one more at either end, or two at one."""


def _padded(left: int, right: int, mode: str, x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (left, right), (0, 0)), mode=mode)  # type: ignore[call-overload] # a name of NumPy's


ENDS: Mapping[str, tuple[str, Ends]] = {
    "behind": ("both frames of zeros are behind the last frame, none in front", partial(_padded, 0, 2, "constant")),
    "in front": (
        "both frames of zeros are in front of the first frame, as in a causal convolution",
        partial(_padded, 2, 0, "constant"),
    ),
    "edge": ("the first and the last frame are repeated at the ends, not zeros", partial(_padded, 1, 1, "edge")),
    "circular": ("each end is continued by the other, not by zeros", partial(_padded, 1, 1, "wrap")),
}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    if site in (FIRST, SECOND):
        yield from _of_convolution(site)


def _of_convolution(site: str) -> Iterator[Fault]:
    for name, (function, says) in ACTIVATIONS.items():
        if name != "gelu":
            description = f"{says} instead of {ACTIVATIONS['gelu'][1]} behind the convolution"
            yield Fault(
                "convolution-activation", name, description, formula=convolution, settings={"function": function}
            )
    for name, (description, kernel) in KERNELS.items():
        yield Fault("convolution-kernel", name, description, formula=convolution, settings={"kernel": kernel})
    for name, (description, ends) in ENDS.items():
        yield Fault("convolution-padding", name, description, formula=convolution, settings={"ends": ends})
    if site == FIRST:
        for name, (description, frames) in LAYOUTS.items():
            yield Fault("frame-layout", name, description, formula=convolution, settings={"frames": frames})
        return
    description = "the first convolution has the stride 2, and the second 1"
    yield Fault("convolution-stride", "of the first", description, patch=_first_with_stride, reshapes=FIRST)


def convolution(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """The activation behind a convolution, with other settings."""
    if site == FIRST:
        given = state.inputs["source"].astype(value.dtype)
        x = settings["frames"](given) if "frames" in settings else given.swapaxes(1, 2)
        return _convolved(settings, state, site, x, 1).astype(value.dtype)
    return _convolved(settings, state, site, state.taps[FIRST], 2).astype(value.dtype)


def _convolved(settings: Settings, state: WalkState, site: str, x: np.ndarray, stride: int) -> np.ndarray:
    weight = state.parameters[f"{site}.weight"]
    kernel = weight.reshape(len(weight), -1, 3)
    kernel = settings["kernel"](kernel) if "kernel" in settings else kernel
    padded = settings.get("ends", partial(_padded, 1, 1, "constant"))(x)
    parts = [padded[:, i : i + x.shape[1] : stride] @ kernel[..., i].T for i in range(3)]
    function = settings.get("function", ACTIVATIONS["gelu"][0])
    result: np.ndarray = function(sum(parts) + state.parameters.get(f"{site}.bias", 0))
    return result


def _first_with_stride(state: WalkState, site: str, value: Value) -> Value:
    x = state.inputs["source"].astype(value.dtype).swapaxes(1, 2)
    return _convolved({}, state, SECOND, _convolved({}, state, FIRST, x, 2), 1).astype(value.dtype)
