"""Training over data ranks: the loss over the tokens of all ranks, its gradients, and the steps of an optimizer."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from transparity.taps import identity
from transparity.training import Training
from transparity_flax.arithmetic.changes import dropping
from transparity_flax.state.parameters import State, named
from transparity_flax.training.loss import cross_entropy
from transparity_flax.training.optimization import _optimizer, clip_by_global_norm
from transparity_flax.transformer import Transformer

Graph = nnx.GraphDef[Transformer]
Batch = Mapping[str, Any]
"""A batch of inputs and `targets`; the inputs may have more rows, which were added to fill ranks."""


@functools.partial(jax.jit, static_argnums=0)
def loss_and_gradients(graph: Graph, state: State, batch: Batch, masks: Batch) -> tuple[Array, dict[str, Array]]:
    """Return the loss of the whole batch, and its gradients with respect to all learned parameters."""
    parameters, statistics = state.split(nnx.Param, ...)
    loss, gradients = jax.value_and_grad(_loss_of)(parameters, graph, statistics, batch, masks)
    return loss, named(gradients)


def train(
    mesh: Mesh, graph: Graph, state: State, batches: Sequence[Batch], training: Training
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Take one step per batch; return the loss before each step and the final learned parameters.

    Parameters and moments stay sharded.
    """
    parameters, statistics = state.split(nnx.Param, ...)
    dim = nnx.merge(graph, state).config.embed_dim
    rates = jnp.array([training.rate(step, dim) for step in range(1, len(batches) + 1)])
    moments = _optimizer(training, rates).init(parameters)
    places = _places(mesh, parameters), _places(mesh, moments)
    step = jax.jit(_step, static_argnums=(0, 1), out_shardings=(None, *places))  # XLA would choose other shardings
    moments, losses = jax.device_put(moments, places[1]), []
    for batch in batches:
        loss, parameters, moments = step(graph, training, rates, parameters, statistics, moments, batch)
        losses.append(float(loss))
    return losses, named(jax.device_get(parameters))


def _places(mesh: Mesh, values: Any) -> Any:
    def place(value: Array) -> NamedSharding:
        return value.sharding if isinstance(value.sharding, NamedSharding) else NamedSharding(mesh, PartitionSpec())

    return jax.tree.map(place, values)


def _step(
    graph: Graph,
    training: Training,
    rates: Float[Array, " steps"],
    parameters: State,
    statistics: State,
    moments: optax.OptState,
    batch: Batch,
) -> tuple[Array, State, optax.OptState]:
    loss, gradients = jax.value_and_grad(_loss_of)(parameters, graph, statistics, batch, {})
    if training.max_norm is not None:
        gradients = clip_by_global_norm(gradients, training.max_norm)
    updates, moments = _optimizer(training, rates).update(gradients, moments, parameters)
    return loss, optax.apply_updates(parameters, updates), moments


def _loss_of(parameters: State, graph: Graph, statistics: State, batch: Batch, masks: Batch) -> Float[Array, ""]:
    model = nnx.merge(graph, parameters, statistics, copy=True)
    tokens = {name: value for name, value in batch.items() if name != "targets"}
    tap = dropping(masks, model.config.dropout) if masks else identity
    logits = model(**tokens, tap=tap)[: len(batch["targets"])]
    return cross_entropy(logits, batch["targets"], model.config.pad_id)
