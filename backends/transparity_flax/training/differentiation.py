"""Gradients of the loss by JAX's reverse mode."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity_flax.shapes import TokenIds
from transparity_flax.state.parameters import State, named
from transparity_flax.training.loss import cross_entropy
from transparity_flax.transformer import Transformer


def loss_of(model: Transformer, targets: TokenIds, **tokens: Any) -> Float[Array, ""]:
    """Return the loss of a model; in training, batch norms normalize by the batch."""
    return cross_entropy(model(**tokens), targets, model.config.pad_id)


def loss_and_gradients(
    model: Transformer, targets: TokenIds, **tokens: Any
) -> tuple[Float[Array, ""], dict[str, Array]]:
    """Return the loss, and its gradients with respect to all learned parameters."""
    graph, *states = nnx.split(model, nnx.Param, ...)
    parameters, statistics = states

    def loss(parameters: State) -> Array:
        return loss_of(nnx.merge(graph, parameters, statistics, copy=True), targets, **tokens)

    value, gradients = jax.value_and_grad(loss)(parameters)
    return value, named(gradients)
