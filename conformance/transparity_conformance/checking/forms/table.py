"""The forms of an answer: what is returned of the reference's values (`VALUES`), in one arrangement (`PARTS`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from transparity_numpy.arithmetic.functional import log_softmax, softmax

Arrange = Callable[[np.ndarray], np.ndarray]
Read = Callable[[np.ndarray, tuple[int, ...]], np.ndarray]


class OtherForm(Exception):  # noqa: N818 - no error
    """An answer is not of this form, by its shape."""


@dataclass(frozen=True)
class Part:
    """An arrangement of an answer."""

    says: str
    """What is returned, with `{}` for the values."""
    advice: str = ""
    """A further clause on what to do, with `{}` for the size of the vocabulary."""
    covers: str = ""
    """The part that is compared; empty: all of it."""
    part: Arrange = lambda ours: ours
    """From an array of the reference to the same part of it."""
    read: Read = lambda theirs, shape: theirs
    """From the port's answer to the arrangement of `part`, given the shape of the whole; it raises `OtherForm`, or
    `ValueError`, for an answer of another arrangement."""


@dataclass(frozen=True)
class Value:
    """What the numbers of an answer are."""

    noun: str
    advice: str = ""
    of: Arrange = lambda ours: ours
    """From the reference's value at `tap` to these numbers."""
    tap: str = "logits"
    slope: float = 1.0
    """The largest change of a number for a change of the logits by 1."""
    are_ids: bool = False


def error(value: Value, theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """The elementwise error of a port's numbers; raises `OtherForm` for another shape.

    Args:
        ours: the reference's at `value.tap`, in the arrangement of `theirs`.
    """
    if value.are_ids:
        return _below_the_largest(theirs, ours)
    if theirs.shape != ours.shape:
        raise OtherForm
    return np.abs(theirs - value.of(ours))


def _below_the_largest(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """The logits' largest, less that of the token that the port returned: 0 for the right token, or a tie."""
    if theirs.shape != ours.shape[:-1]:
        raise OtherForm
    ids = theirs.astype(np.int64)
    is_token = (ids == theirs) & (ids >= 0) & (ids < ours.shape[-1])
    chosen = np.take_along_axis(ours, np.where(is_token, ids, 0)[..., None], -1)[..., 0]
    return np.where(is_token, ours.max(-1) - chosen, np.inf)


def _without_axis(axis: int) -> Read:
    def read(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        if theirs.ndim != len(shape) + 1:
            raise OtherForm
        return np.squeeze(theirs, axis)

    return read


def _exchanged(one: int, other: int) -> Read:
    def read(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        return np.swapaxes(theirs, one, other)

    return read


def _cut(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if theirs.shape[-1:] <= shape[-1:]:
        raise OtherForm
    return theirs[..., : shape[-1]]


def _unflattened(theirs: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if theirs.ndim != 2:
        raise OtherForm
    return theirs.reshape(*shape[:2], -1)


PARTS = (
    Part("{}"),
    Part("{} of a padded vocabulary", "cut to its first {} columns", read=_cut),
    Part("{} with the vocabulary before the positions", "transposed", read=_exchanged(1, 2)),
    Part("{} with the positions before the rows", "transposed", read=_exchanged(0, 1)),
    *(Part("{} with an axis too many", "without it", read=_without_axis(axis)) for axis in range(4)),
    Part("{} with rows and positions in one axis", "reshaped", read=_unflattened),
    Part("{} of the last position alone", "", "the last position", lambda ours: ours[:, -1]),
    Part("{} of the last position alone", "", "the last position", lambda ours: ours[:, -1:]),
    Part("{} of one row, without a batch dimension,", "", "the first row", lambda ours: ours[0]),
    Part("{} of one position, the last of the first row,", "", "this position", lambda ours: ours[0, -1]),
)

LOGITS = Value("logits")

VALUES = (
    LOGITS,
    Value("log-probabilities", "without log_softmax", log_softmax, slope=2),
    Value("probabilities", "without softmax", softmax, slope=2),
    Value("hidden states", "through the head", tap="{stack}.output"),
    Value("hidden states before the final norm", "through the norm and the head", tap="{layer}.output"),
    Value("token ids", "without argmax", slope=2, are_ids=True),
)
