"""The loss (the cross-entropy of the targets under the logits), and its gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity_numpy.arithmetic.functional import derivative, log_softmax
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.shapes import Parameters, TokenIds
from transparity_numpy.transformer import transformer


def cross_entropy(
    logits: Inexact[Array, "batch length vocab"], targets: TokenIds, pad_id: int | None, label_smoothing: float = 0.0
) -> Inexact[Array, ""]:
    """Return the mean −log softmax(logits)[target] of targets that are not padding, summed in at least float32
    (document 001).

    With `label_smoothing`, this share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    The loss of a batch with only padding is NaN, as in PyTorch.
    """
    log_probabilities = log_softmax(upcast(logits))
    picked = np.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    if label_smoothing:
        of_dtype = picked.dtype.type
        picked = of_dtype(1 - label_smoothing) * picked + of_dtype(label_smoothing) * log_probabilities.mean(axis=-1)
    counted = targets != pad_id if pad_id is not None else np.ones(targets.shape, bool)
    with np.errstate(invalid="ignore"):
        return np.asarray(-np.where(counted, picked, picked.dtype.type(0)).sum() / picked.dtype.type(counted.sum()))


def loss_of(
    config: TransformerConfig, parameters: Parameters, targets: TokenIds, *, training: bool = False, **tokens: Any
) -> Inexact[Array, ""]:
    """Return the loss of a model; in training, batch norms normalize by the batch."""
    logits = transformer(config, parameters, **tokens, training=training)
    return cross_entropy(logits, targets, config.pad_id)


def loss_and_gradients(
    config: TransformerConfig, parameters: Parameters, targets: TokenIds, *, training: bool = False, **tokens: Any
) -> tuple[Inexact[Array, ""], dict[str, Array]]:
    """Return the loss and its gradients, computed with one forward pass for each element of the parameters."""

    def loss(parameters: Parameters) -> Array:
        return loss_of(config, parameters, targets, training=training, **tokens)

    gradients = {name: np.zeros_like(value) for name, value in parameters.items() if is_learned(name)}
    for name, gradient in gradients.items():
        for index in np.ndindex(gradient.shape):
            toward = np.zeros_like(gradient)
            toward[index] = 1
            gradient[index] = derivative(loss, parameters, {name: toward})
    return loss(parameters), gradients
