"""The loss (the cross-entropy of the targets under the logits), and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity_flax.arithmetic.precision import upcast
from transparity_flax.shapes import TokenIds
from transparity_flax.state.parameters import State, named
from transparity_flax.transformer import Transformer

Loss = Callable[..., Float[Array, ""]]
"""The function `loss_of`, or another function with the same arguments."""


def cross_entropy(
    logits: Float[Array, "batch length vocab"], targets: TokenIds, pad_id: int | None, label_smoothing: float = 0.0
) -> Float[Array, ""]:
    """Return the mean −log softmax(logits)[target] of targets that are not padding, summed in at least float32
    (document 001).

    With `label_smoothing`, this share of each target is spread evenly over the vocabulary (Szegedy et al. 2016, §7).
    The loss of a batch with only padding is NaN, as in PyTorch.
    """
    log_probabilities = jax.nn.log_softmax(upcast(logits), axis=-1)
    picked = jnp.take_along_axis(log_probabilities, targets[..., None], axis=-1)[..., 0]
    if label_smoothing:
        picked = (1 - label_smoothing) * picked + label_smoothing * log_probabilities.mean(axis=-1)
    counted = targets != pad_id if pad_id is not None else jnp.ones_like(targets, dtype=bool)
    return (-jnp.where(counted, picked, 0).sum() / counted.sum()).astype(logits.dtype)


def loss_of(model: Transformer, targets: TokenIds, **tokens: Any) -> Float[Array, ""]:
    """Return the loss of a model; in training, batch norms normalize by the batch."""
    return cross_entropy(model(**tokens), targets, model.config.pad_id)


def loss_and_gradients(
    model: Transformer, targets: TokenIds, *, loss_of: Loss = loss_of, **tokens: Any
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Return the loss, and its gradients with respect to all learned parameters."""
    graph, *states = nnx.split(model, nnx.Param, ...)
    parameters, statistics = states

    def loss(parameters: State) -> Array:
        return loss_of(nnx.merge(graph, parameters, statistics, copy=True), targets, **tokens)

    value, gradients = jax.value_and_grad(loss)(parameters)
    return value, named(gradients)
