"""Optimization: the steps that a loss's gradients are made into, by Optax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import Array

from transparity.training import Training
from transparity_flax.differentiation import loss_of
from transparity_flax.parameters import named
from transparity_flax.transformer import Transformer

State = nnx.State[Any, Any]


def clip_by_global_norm(gradients: Mapping[str, Array], max_norm: float) -> dict[str, Array]:
    """The gradients, all scaled by one factor if together they are longer than `max_norm` (Pascanu et al. 2013)."""
    clip = optax.clip_by_global_norm(max_norm)
    clipped, _ = clip.update(dict(gradients), clip.init(dict(gradients)))
    return clipped


def train(
    model: Transformer, batches: Sequence[Mapping[str, Array]], training: Training
) -> tuple[list[float], dict[str, Array]]:
    """One step for each batch (`targets` and tokens): the losses before each, and what the parameters have become.

    A batch norm normalises by the batch; its running statistics stay.
    """
    graph, *states = nnx.split(model, nnx.Param, ...)
    parameters, statistics = states
    optimizer = _optimizer(training, model.config.embed_dim, len(batches))
    state, losses = optimizer.init(parameters), []

    @jax.jit
    def step(parameters: State, state: optax.OptState, batch: Mapping[str, Array]) -> tuple[Array, State, Any]:
        def loss_at(parameters: State) -> Array:
            return loss_of(nnx.merge(graph, parameters, statistics, copy=True), **batch)

        loss, gradients = jax.value_and_grad(loss_at)(parameters)
        updates, state = optimizer.update(gradients, state, parameters)
        return loss, optax.apply_updates(parameters, updates), state

    for batch in batches:
        loss, parameters, state = step(parameters, state, batch)
        losses.append(float(loss))
    return losses, named(parameters)


def _optimizer(training: Training, embed_dim: int, steps: int) -> optax.GradientTransformation:
    # A table, for the schedule is Python's: what is traced cannot be compared by it.
    rates = jnp.array([training.rate(step, embed_dim) for step in range(1, steps + 1)])

    def rate(count: Array) -> Array:
        return rates[count]

    (beta1, beta2), eps = training.betas, training.eps
    optimizer = {
        "sgd": lambda: optax.sgd(rate, momentum=training.momentum),
        "adam": lambda: optax.adam(rate, beta1, beta2, eps),
        "adamw": lambda: optax.adamw(rate, beta1, beta2, eps, weight_decay=training.weight_decay),
    }[training.optimizer]()
    if training.max_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(training.max_norm), optimizer)
