"""Gradients of the loss by the complex step, which needs only the forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity_numpy.arithmetic.functional import derivative
from transparity_numpy.shapes import TokenIds
from transparity_numpy.training.loss import cross_entropy
from transparity_numpy.transformer import transformer

Parameters = Mapping[str, Array]


def loss_of(
    config: TransformerConfig, parameters: Parameters, targets: TokenIds, *, training: bool = False, **tokens: Any
) -> Inexact[Array, ""]:
    """Return the loss of a model; in training, batch norms normalize by the batch."""
    logits = transformer(config, parameters, **tokens, training=training)
    return cross_entropy(logits, targets, config.pad_id)


def loss_and_gradients(
    config: TransformerConfig, parameters: Parameters, targets: TokenIds, *, training: bool = False, **tokens: Any
) -> tuple[Inexact[Array, ""], dict[str, Array]]:
    """Return the loss, and its gradients with respect to all learned parameters.

    This takes one forward pass for each number in the parameters.
    """

    def loss(parameters: Parameters) -> Array:
        return loss_of(config, parameters, targets, training=training, **tokens)

    gradients = {name: np.zeros_like(value) for name, value in parameters.items() if is_learned(name)}
    for name, gradient in gradients.items():
        for index in np.ndindex(gradient.shape):
            toward = np.zeros_like(gradient)
            toward[index] = 1
            gradient[index] = derivative(loss, parameters, {name: toward})
    return loss(parameters), gradients
