"""The first call of a module that reads images, or frames of audio: the shapes that it takes are found by trying."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from transparity_conformance.identify.fitting.signals.embedding import image_embedding
from transparity_conformance.identify.fitting.signals.kernels import frame_shapes, image_shapes
from transparity_conformance.identify.fitting.subject import FitError, FittedModel, ModuleError

BATCH = 3

NO_IMAGES = "The module takes images, and none of its parameters is a map of square patches; expected one, as a kernel "
NO_IMAGES += "whose stride is its size or as a matrix."

NO_FRAMES = "The module takes frames of audio, and none of its parameters are two convolutions over time of width 3, "
NO_FRAMES += "one behind the other; expected them."


def take_image(subject: FittedModel) -> np.ndarray:
    """Random images of the first size that the module takes; `subject` knows the positions that they become."""
    error: FitError = FitError(NO_IMAGES)
    for shape in image_shapes(subject.values):
        pixels = drawn(subject, BATCH, shape)
        subject.positions = {"pixels": 1}  # unknown until the call is taken apart
        try:
            heard = subject.hear({"pixels": pixels})
        except ModuleError as raised:
            error = raised
            continue
        found = image_embedding(heard, subject.values)
        subject.positions = {"pixels": found.length(BATCH)}
        more = found.fields["patch_size"]
        if subject.takes({"pixels": np.pad(pixels, ((0, 0), (0, 0), (0, more), (0, more)))}):
            subject.loose.add("pixels")
        return pixels
    raise error


def frames_of(subject: FittedModel) -> Iterable[np.ndarray]:
    """Random spectrograms of the sizes that the module may take, the likeliest first."""
    tables = {name: value.shape for name, value in {**subject.values, **subject.kept()}.items()}
    shapes = list(dict.fromkeys(frame_shapes(subject.values, tables)))
    if not shapes:
        raise FitError(NO_FRAMES)
    for shape in shapes:
        yield drawn(subject, BATCH, shape)


def drawn(subject: FittedModel, batch: int, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers that are all different."""
    return subject.random.normal(size=(batch, *shape)).astype(np.float32)
