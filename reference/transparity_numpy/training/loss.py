"""The loss: the cross-entropy of the targets under the logits."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity_numpy.arithmetic.functional import log_softmax
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import TokenIds


def cross_entropy(
    logits: Inexact[Array, "batch length vocab"], targets: TokenIds, pad_id: int | None, label_smoothing: float = 0.0
) -> Inexact[Array, ""]:
    """Return the mean of −log softmax(logits)[target] over the targets that are not padding (document 001), in at least
    float32.

    With `label_smoothing`, this share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    The loss of a batch with only padding is NaN, as in the frameworks.
    """
    log_probabilities = log_softmax(upcast(logits))
    picked = np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    if label_smoothing:
        of_dtype = picked.dtype.type
        picked = of_dtype(1 - label_smoothing) * picked + of_dtype(label_smoothing) * log_probabilities.mean(axis=-1)
    counted = targets != pad_id if pad_id is not None else np.ones(targets.shape, bool)
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.where(counted, picked, picked.dtype.type(0)).sum() / picked.dtype.type(counted.sum()))
