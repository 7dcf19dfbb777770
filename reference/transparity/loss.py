"""The loss: how surprised the model is by the tokens that came."""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact, Int
from numpy import ndarray as Array

from transparity.functional import log_softmax


def cross_entropy(
    logits: Inexact[Array, "batch length vocab"], targets: Int[Array, "batch length"], pad_id: int | None
) -> Inexact[Array, ""]:
    """The mean of −log softmax(logits)[target] over the targets that are not padding (document 001).

    A batch of nothing but padding has no mean: NaN, as in the frameworks.
    """
    picked = np.take_along_axis(log_softmax(logits), targets[..., None], axis=-1)[..., 0]
    counted = targets != pad_id if pad_id is not None else np.ones(targets.shape, bool)
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.where(counted, picked, picked.dtype.type(0)).sum() / picked.dtype.type(counted.sum()))
