"""Derivatives of the loss by every parameter, by the complex step, and how far rounding may take them.

A gradient is tried along random directions: there its product with the direction is the derivative of the loss, and one
wrong number anywhere shows. Parameters of a kind round alike, and share a budget.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity.taps import Tap, identity
from transparity_conformance.oracle.oracle import Arrays, Oracle
from transparity_numpy.arithmetic.dropout import dropping
from transparity_numpy.arithmetic.functional import derivative
from transparity_numpy.training.loss import cross_entropy
from transparity_numpy.transformer import transformer

AT_LEAST = 16
"""The directions to try for each kind of parameter: the error along one alone may be small by luck."""

Loss = Callable[[np.ndarray, np.ndarray, int | None], np.ndarray]
"""From logits (batch, length, vocab), possibly complex, targets (batch, length) and the padding token to the loss."""


def projection_of(name: str) -> str:
    """`query` of every attention: its weight and its bias."""
    return name.split(".")[-2]


def _directions(parameters: Arrays) -> dict[str, int]:
    """The directions of each learned parameter, kind by kind."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for name in filter(is_learned, parameters):
        kinds[projection_of(name)].append(name)
    return {name: math.ceil(AT_LEAST / len(names)) for names in kinds.values() for name in names}


def memory_of_derivatives(parameters: Arrays) -> int:
    """Bytes of all directions in float64, and of the parameters and one direction in complex numbers."""
    directions = sum(count * parameters[name].size for name, count in _directions(parameters).items())
    return 8 * directions + 2 * 16 * sum(value.size for value in parameters.values())


class Derivatives:
    """The derivatives of the loss of one model on one batch, along directions of each learned parameter."""

    def __init__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        inputs: Arrays,
        *,
        loss: Loss = cross_entropy,
        training: bool = False,
        masks: Arrays | None = None,
    ) -> None:
        self.config, self.inputs, self.loss, self.training = config, inputs, loss, training
        self.masks = masks
        self.targets = targets_of(config, inputs)
        random = np.random.default_rng(7)
        self.directions = {
            name: random.normal(size=(count, *parameters[name].shape))
            for name, count in _directions(parameters).items()
        }
        self.oracle = Oracle(self._run, parameters)

    @functools.cached_property
    def expected(self) -> Arrays:
        """In float64, by parameter: one number for each of its directions."""
        remaining = {kind: iter(values) for kind, values in self.oracle.expected.items()}
        return {
            name: np.array([next(remaining[projection_of(name)]) for _ in toward])
            for name, toward in self.directions.items()
        }

    def budget(self, name: str, dtype: str) -> float:
        """The budget of the derivatives of the parameter `name` in `dtype`."""
        return self.oracle.budget(projection_of(name), dtype)

    def along(self, gradients: Mapping[str, np.ndarray]) -> Arrays:
        """The derivatives along the directions that follow from `gradients`; none for a gradient of another shape."""
        return {
            name: (toward * gradients[name].astype(np.float64)).reshape(len(toward), -1).sum(-1)
            for name, toward in self.directions.items()
            if name in gradients and gradients[name].shape == toward.shape[1:]
        }

    def _run(self, arrays: Arrays, tap: Tap) -> None:
        drop = dropping(self.masks, self.config.dropout) if self.masks else identity

        def loss(parameters: Mapping[str, np.ndarray]) -> np.ndarray:
            logits = transformer(self.config, parameters, **self.inputs, training=self.training, tap=drop)
            return self.loss(logits, self.targets, self.config.pad_id)

        found: dict[str, list[np.ndarray]] = defaultdict(list)
        for name, toward in self.directions.items():
            for direction in toward.astype(arrays[name].dtype):
                found[projection_of(name)].append(derivative(loss, arrays, {name: direction}))
        for kind, values in found.items():
            tap(kind, np.array(values))


def targets_of(config: TransformerConfig, inputs: Arrays) -> np.ndarray:
    """The target tokens: the inputs shifted by one, padding included."""
    return np.roll(inputs[config.input_names[-1]], -1, axis=1)
