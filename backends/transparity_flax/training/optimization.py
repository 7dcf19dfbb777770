"""Optimizers: SGD, Adam and AdamW by Optax, with gradient clipping."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.training import Training
from transparity_flax.fast.structure import ModelStructure, split
from transparity_flax.state.parameters import State, named
from transparity_flax.training.loss import Loss, loss_of
from transparity_flax.transformer import Transformer

Start = Callable[[Training, Float[Array, " steps"], State], tuple[optax.OptState, Any]]
"""A function that returns an optimizer's state and a step function, such as `start_on_mesh`."""


def clip_by_global_norm(gradients: State, max_norm: float) -> State:
    """g · min(1, max_norm / ‖g‖), where ‖g‖ is the norm of all gradients together (Pascanu et al. 2013)."""
    clip = optax.clip_by_global_norm(max_norm)
    clipped, _ = clip.update(gradients, clip.init(gradients))
    return clipped


def train(
    model: Transformer,
    batches: Sequence[Mapping[str, Array]],
    training: Training,
    *,
    loss_of: Loss = loss_of,
    start: Start | None = None,
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Take one step per batch (inputs and `targets`); return the loss before each step and the learned parameters.

    Batch norms normalize by the batch, and running statistics do not change.
    """
    structure, _ = split(model)
    _, *states = nnx.split(model, nnx.Param, ...)
    parameters, statistics = states
    # The rates are a table, because the schedule is Python code, which cannot compare traced values.
    rates = jnp.array([training.rate(step, model.config.embed_dim) for step in range(1, len(batches) + 1)])
    (state, step), losses = (start or _on_one_device)(training, rates, parameters), []
    for batch in batches:
        loss, parameters, state = step(loss_of, structure, training, rates, parameters, statistics, state, batch)
        losses.append(float(loss))  # waits for the step, because pending steps hold memory
    return losses, named(jax.device_get(parameters))  # because NumPy transposes without a copy


def _on_one_device(training: Training, rates: Float[Array, " steps"], parameters: State) -> tuple[optax.OptState, Any]:
    """Return an optimizer's state and a step function. The state is committed to a device, like the results of a step,
    so JAX compiles the step only once."""
    home = jax.tree.leaves(parameters)[0].sharding
    return jax.device_put(_start(training, rates, parameters), home), optimizer_step


@functools.partial(jax.jit, static_argnums=0)
def _start(training: Training, rates: Float[Array, " steps"], parameters: State) -> optax.OptState:
    return optimizer_of(training, rates).init(parameters)


# The arguments are not donated, because the step would then have to allocate scratch memory each time. This takes more
# memory but less time.
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def optimizer_step(
    loss_of: Loss,
    structure: ModelStructure,
    training: Training,
    rates: Float[Array, " steps"],
    parameters: State,
    statistics: State,
    state: optax.OptState,
    batch: Mapping[str, Array],
) -> tuple[Array, State, optax.OptState]:
    def loss_at(parameters: State) -> Array:
        return loss_of(nnx.merge(structure.graph, parameters, statistics, copy=True), **batch)

    loss, gradients = jax.value_and_grad(loss_at)(parameters)
    if training.max_norm is not None:
        gradients = clip_by_global_norm(gradients, training.max_norm)
    updates, state = optimizer_of(training, rates).update(gradients, state, parameters)
    return loss, optax.apply_updates(parameters, updates), state


def optimizer_of(training: Training, rates: Float[Array, " steps"]) -> optax.GradientTransformation:
    def rate(count: Array) -> Array:
        return rates[count]

    (beta1, beta2), eps = training.betas, training.eps
    return {
        "sgd": lambda: optax.sgd(rate, momentum=training.momentum),
        "adam": lambda: optax.adam(rate, beta1, beta2, eps),
        "adamw": lambda: optax.adamw(rate, beta1, beta2, eps, weight_decay=training.weight_decay),
    }[training.optimizer]()
