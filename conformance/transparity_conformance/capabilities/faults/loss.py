"""Faults in the loss, given right logits: the targets that count, and the divisor."""

from __future__ import annotations

import math

import numpy as np

from transparity_conformance.capabilities.faults import SimulatedFault
from transparity_numpy.arithmetic.functional import log_softmax, softmax
from transparity_numpy.training.loss import cross_entropy


def surprises(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return −log softmax at each target that counts, 0 at the others; and the mask of those that count."""
    counted = targets != pad_id if pad_id is not None else np.ones(targets.shape, bool)
    picked = np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    return -np.where(counted, picked, picked.dtype.type(0)), counted


def smoothed(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    """Cross-entropy with label smoothing of 1: all tokens are equally likely targets."""
    return cross_entropy(logits, targets, pad_id, label_smoothing=1.0)


def _mean_of_means(logits: np.ndarray, targets: np.ndarray, pad_id: int | None) -> np.ndarray:
    lost, counted = surprises(logits, targets, pad_id)
    seen = counted.any(axis=-1)
    return np.asarray((lost.sum(axis=-1)[seen] / counted.sum(axis=-1)[seen]).mean())


LOSS_FAULTS = (
    SimulatedFault("loss-reduction", "padded targets count in the loss", lambda x, y, _: cross_entropy(x, y, None)),
    SimulatedFault(
        "loss-reduction",
        "the loss is a sum over the targets, not their mean",
        lambda x, y, pad_id: np.asarray(surprises(x, y, pad_id)[0].sum()),
    ),
    SimulatedFault(
        "loss-reduction",
        "the loss is divided by all positions, padding included",
        lambda x, y, pad_id: np.asarray(surprises(x, y, pad_id)[0].mean()),
    ),
    SimulatedFault(
        "loss-reduction",
        "the loss is a sum divided by the number of rows",
        lambda x, y, pad_id: np.asarray(surprises(x, y, pad_id)[0].sum() / len(y)),
    ),
    SimulatedFault("loss-reduction", "the loss is the mean over rows of each row's mean", _mean_of_means),
    SimulatedFault(
        "loss-shift",
        "the targets are shifted once more: each logit is compared with the token after its target",
        lambda x, y, pad_id: cross_entropy(x[:, :-1], y[:, 1:], pad_id),
    ),
    SimulatedFault(
        "loss-shift",
        "the targets are not shifted: each logit is compared with its input token",
        lambda x, y, pad_id: cross_entropy(x, np.roll(y, 1, axis=1), pad_id),
    ),
    SimulatedFault(
        "loss-base",
        "the loss is in bits: log₂ instead of the natural logarithm",
        lambda x, y, pad_id: np.asarray(cross_entropy(x, y, pad_id) / math.log(2)),
    ),
    SimulatedFault(
        "loss-softmax",
        "softmax is applied to the logits before the cross-entropy, which has its own",
        lambda x, y, pad_id: cross_entropy(softmax(x), y, pad_id),
    ),
)
