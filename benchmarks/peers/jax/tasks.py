"""Forward pass and training with jitted JAX functions; a timed run starts from NumPy arrays, and waits for the
result."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from benchmarks.workloads import TRAINING, Run, Task

Apply = Callable[..., jax.Array]
"""A function of the weights, the tokens and the source tokens (or None) that returns the logits."""


def tasks(task: Task, apply: Apply, weights: Any) -> Run:
    return train(task, apply, weights) if task.workload.kind == "train" else logits(task, apply, weights)


def logits(task: Task, apply: Apply, weights: Any) -> Run:
    forward = jax.jit(apply)
    return lambda: jax.block_until_ready(forward(weights, *tensors(task)))


def train(task: Task, apply: Apply, weights: Any) -> Run:
    """Return a run that trains with optax's AdamW, one jitted call per step, and returns the losses."""
    optimizer = optax.adamw(
        TRAINING.learning_rate, *TRAINING.betas, eps=TRAINING.eps, weight_decay=TRAINING.weight_decay
    )

    def loss_of(weights: Any, tokens: jax.Array, source: jax.Array | None, targets: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(apply(weights, tokens, source), targets).mean()

    @jax.jit
    def step(weights: Any, state: Any, *batch: Any) -> tuple[Any, Any, jax.Array]:
        loss, gradients = jax.value_and_grad(loss_of)(weights, *batch)
        updates, state = optimizer.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state, loss

    def run() -> jax.Array:
        batch = (*tensors(task), jnp.asarray(task.inputs["targets"]))
        trained, state, losses = weights, optimizer.init(weights), []
        for _ in range(task.workload.steps):
            trained, state, loss = step(trained, state, *batch)
            losses.append(loss)
        jax.block_until_ready(trained)
        return jnp.stack(losses)

    return run


def tensors(task: Task) -> tuple[jax.Array, jax.Array | None]:
    source = task.tokens.get("source")
    return jnp.asarray(task.tokens["tokens"]), None if source is None else jnp.asarray(source)
