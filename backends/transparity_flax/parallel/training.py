"""Training over data ranks: the loss, which ignores the rows that pad a batch, and the steps of an optimizer."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import optax
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float

from transparity.training import Training
from transparity_flax.shapes import TokenIds
from transparity_flax.state.parameters import State
from transparity_flax.training import optimization
from transparity_flax.training.loss import cross_entropy
from transparity_flax.transformer import Transformer


def loss_of_rows(model: Transformer, targets: TokenIds, **inputs: Any) -> Float[Array, ""]:
    """Return the loss over the first `len(targets)` rows of `inputs`; the rows after these only pad the batch."""
    return cross_entropy(model(**inputs)[: len(targets)], targets, model.config.pad_id)


def start_on_mesh(
    mesh: Mesh, training: Training, rates: Float[Array, " steps"], parameters: State
) -> tuple[optax.OptState, Any]:
    """Return an optimizer's state, sharded like the parameters, and a step function that keeps the shardings."""
    state = optimization.optimizer_of(training, rates).init(parameters)
    places = _places(mesh, parameters), _places(mesh, state)
    step = inspect.unwrap(optimization.optimizer_step)  # not compiled, because XLA would choose other shardings
    return jax.device_put(state, places[1]), jax.jit(step, static_argnums=(0, 1, 2), out_shardings=(None, *places))


def _places(mesh: Mesh, values: Any) -> Any:
    def place(value: Array) -> NamedSharding:
        return value.sharding if isinstance(value.sharding, NamedSharding) else NamedSharding(mesh, PartitionSpec())

    return jax.tree.map(place, values)
