"""Mistakes in the loss: which targets it looks at, and what it divides by. The logits themselves are right."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from transparity_conformance.oracle.derivatives import Loss
from transparity_numpy.functional import log_softmax, softmax
from transparity_numpy.loss import cross_entropy


@dataclass(frozen=True)
class LossMistake:
    """A loss that people compute instead."""

    id: str
    says: str
    loss: Loss


def _surprises(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> tuple[np.ndarray, np.ndarray]:
    """−log softmax at each target that counts, 0 at the others; and which count."""
    counted = targets != pad_id if pad_id is not None else np.ones(targets.shape, bool)
    picked = np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return -np.where(counted, picked, picked.dtype.type(0)), counted


def _shifted(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return cross_entropy(logits[:, :-1], targets[:, 1:], pad_id)


def _not_shifted(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return cross_entropy(logits, np.roll(targets, 1, axis=1), pad_id)


def _padding_counted(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return cross_entropy(logits, targets, None)


def _summed(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return np.asarray(_surprises(logits, targets, pad_id)[0].sum())


def _over_all_positions(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return np.asarray(_surprises(logits, targets, pad_id)[0].mean())


def _over_rows(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return np.asarray(_surprises(logits, targets, pad_id)[0].sum() / len(targets))


def _mean_of_means(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    surprises, counted = _surprises(logits, targets, pad_id)
    seen = counted.any(axis=-1)
    return np.asarray((surprises.sum(axis=-1)[seen] / counted.sum(axis=-1)[seen]).mean())


def _in_bits(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return np.asarray(cross_entropy(logits, targets, pad_id) / math.log(2))


def _softmax_twice(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    return cross_entropy(softmax(logits), targets, pad_id)


def smoothed(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    """Every token is aimed at alike: label smoothing of 1."""
    return cross_entropy(logits, targets, pad_id, label_smoothing=1.0)


LOSSES = (
    LossMistake("loss-reduction", "padded targets count in the loss", _padding_counted),
    LossMistake("loss-reduction", "the loss is a sum over the targets, not their mean", _summed),
    LossMistake("loss-reduction", "the loss is divided by all positions, padding too", _over_all_positions),
    LossMistake("loss-reduction", "the loss is a sum divided by the number of rows", _over_rows),
    LossMistake("loss-reduction", "the loss is the mean over rows of each row's mean", _mean_of_means),
    LossMistake("loss-shift", "the targets are shifted once more: each logit is held to the token after", _shifted),
    LossMistake(
        "loss-shift", "the targets are not shifted: each logit is held to the token it was given", _not_shifted
    ),
    LossMistake("loss-base", "the loss is in bits, log₂ for the natural logarithm", _in_bits),
    LossMistake(
        "loss-softmax", "logits go through softmax before the cross-entropy, which has its own", _softmax_twice
    ),
)
"""The likeliest first."""
