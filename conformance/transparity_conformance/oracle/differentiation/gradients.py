"""Gradients of the loss, with many entries of a parameter per forward pass, and the expected results of a training run.

The reference changes one entry of a parameter at a time, which is simple and slow. Here, `Leaning` changes another
entry in each row of the batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity.taps import Tap
from transparity.training import Training
from transparity_conformance.oracle.differentiation.derivatives import AT_ONCE
from transparity_conformance.oracle.differentiation.leaning import (
    Directions,
    Leaning,
    of_rows,
    repeated,
    rows_are_apart,
)
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_numpy.arithmetic.functional import STEP
from transparity_numpy.training import loss as of_reference
from transparity_numpy.training.loss import Parameters, cross_entropy, loss_of
from transparity_numpy.training.optimization import train
from transparity_numpy.transformer import transformer


def loss_and_gradients(
    config: TransformerConfig, parameters: Parameters, targets: np.ndarray, *, training: bool = False, **tokens: Any
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the loss and its gradients, as the reference's function of the same name does."""
    if not rows_are_apart(config, training=training):
        return of_reference.loss_and_gradients(config, parameters, targets, training=training, **tokens)
    sizes = {name: value.size for name, value in parameters.items() if is_learned(name)}
    every = [(name, number) for name, size in sizes.items() for number in range(size)]
    at_once = max(1, AT_ONCE // (targets.size * config.stack_vocab_size(config.stacks[-1])))
    found = {name: np.zeros(size, parameters[name].dtype) for name, size in sizes.items()}
    for begin in range(0, len(every), at_once):
        some = every[begin : begin + at_once]
        changed: dict[str, Any] = dict(parameters)
        for name in dict(some):
            changed[name] = _leaning(parameters[name], name, some, len(targets))
        given: dict[str, Any] = {name: repeated(value, len(some)) for name, value in tokens.items()}
        logits = transformer(config, changed, **given, training=training)
        of_each = logits.reshape(len(some), *targets.shape, -1)
        for (name, number), its_logits in zip(some, of_each, strict=True):
            loss = cross_entropy(its_logits, targets, config.pad_id)
            found[name][number] = loss.imag / loss.real.dtype.type(STEP)
    gradients = {name: value.reshape(parameters[name].shape) for name, value in found.items()}
    return loss_of(config, parameters, targets, training=training, **tokens), gradients


def _leaning(value: np.ndarray, name: str, some: list[tuple[str, int]], batch: int) -> Leaning:
    """Return the parameter `name`, perturbed in another entry in each of the stacked batches that belong to it."""
    mine = {row: number for row, (other, number) in enumerate(some) if other == name}
    return Leaning(value, of_rows(_unit_vectors(value.shape), mine, len(some), batch))


def _unit_vectors(shape: tuple[int, ...]) -> Directions:
    """Return the directions of the entries of a parameter, in order; each is a product of unit vectors."""
    numbers = np.indices(shape).reshape(len(shape), -1)
    return tuple(np.eye(size)[index] for size, index in zip(shape, numbers, strict=True))


_train = functools.partial(train, differentiate=loss_and_gradients)


def training_oracle(
    config: TransformerConfig,
    parameters: Arrays,
    batches: Sequence[Arrays],
    training: Training,
    by: Callable[..., tuple[list[float], Arrays]] | None = None,
) -> Oracle:
    """Return the expected `losses` and learned parameters of a training run from `parameters`, with one step per batch.

    `by` is a function that trains instead of the reference.
    """

    def run(arrays: Arrays, tap: Tap) -> None:
        losses, learned = (by or _train)(config, arrays, batches, training)
        for name, value in {"losses": np.array(losses), **learned}.items():
            tap(name, value)

    return Oracle(run, parameters, neighbours=2)
