"""Derivatives of the loss along random directions, by the complex step, and their rounding errors. The product of a
gradient and a direction must equal the derivative along the direction. Parameters of the same kind share a tolerance,
because they have similar rounding errors."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import is_learned
from transparity.taps import Tap, identity
from transparity.training import Training
from transparity_conformance.oracle.budgets import NEIGHBOURS
from transparity_conformance.oracle.differentiation.leaning import (
    Directions,
    Leaning,
    along,
    of_rows,
    repeated,
    rows_are_apart,
)
from transparity_conformance.oracle.oracle import Arrays, Oracle, budget_of
from transparity_conformance.oracle.probes import is_large
from transparity_numpy.arithmetic.changes import dropping
from transparity_numpy.arithmetic.functional import STEP
from transparity_numpy.shapes import Parameters
from transparity_numpy.training import loss as of_reference
from transparity_numpy.training.loss import cross_entropy, loss_of
from transparity_numpy.training.optimization import train
from transparity_numpy.transformer import transformer

AT_LEAST = 16
"""The fewest directions for each kind of parameter; with fewer, an error may be small by chance."""

OF_A_LARGE_ONE, POINTS_OF_A_LARGE_ONE = 8, 2
"""For a large model: the fewest directions of each kind of parameter, and the number of points at which rounding is
measured."""

AT_ONCE, AT_ONCE_OF_A_LARGE_ONE = 2**16, 2**24
"""The largest number of complex logits in one forward pass: 1 MB, to fit a CPU cache; 256 MB for a large model."""

Loss = Callable[[np.ndarray, np.ndarray, int | None], np.ndarray]
"""(logits (batch, length, vocab), targets (batch, length), padding token) → loss; the logits may be complex."""

RouterLoss = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""{tap: a router's logits (batch, length, experts)} → an additional loss."""


def of_routers(into: dict[str, Any], then: Tap = identity) -> Tap:
    def tap(name: str, value: Any) -> Any:
        if name.endswith(".router_logits"):
            into[name] = value
        return then(name, value)

    return tap


def projection_of(name: str) -> str:
    return name.split(".")[-2]


class Derivatives:
    """Derivatives of the loss along directions of each parameter. If `of_padding` is false, no direction changes the
    embedding of the padding token."""

    def __init__(
        self,
        config: TransformerConfig,
        parameters: Arrays,
        inputs: Arrays,
        *,
        loss: Loss = cross_entropy,
        routers: RouterLoss | None = None,
        training: bool = False,
        masks: Arrays | None = None,
        of_padding: bool = True,
    ) -> None:
        self.config, self.inputs, self.loss, self.training = config, inputs, loss, training
        self.masks, self.routers = masks, routers
        self.targets = targets_of(config, inputs)
        self.kinds: dict[str, list[str]] = defaultdict(list)
        for name in filter(is_learned, parameters):
            self.kinds[projection_of(name)].append(name)
        self.is_large, random = is_large(parameters), np.random.default_rng(7)
        fewest = OF_A_LARGE_ONE if self.is_large else AT_LEAST
        counts = {
            name: math.ceil(fewest / len(self.kinds[projection_of(name)])) for name in filter(is_learned, parameters)
        }
        self.directions: dict[str, Directions] = {
            name: tuple(random.normal(size=(count, size)) for size in parameters[name].shape)
            for name, count in counts.items()
        }
        if not of_padding and config.pad_id is not None:
            for name in (name for name in self.directions if name.endswith("token_embedding.weight")):
                self.directions[name][0][:, config.pad_id] = 0
        self._used: dict[str, None] = {}
        self.oracle = Oracle(self._run, parameters, neighbours=POINTS_OF_A_LARGE_ONE if self.is_large else NEIGHBOURS)
        if loss is cross_entropy and masks is None and routers is None:
            self.oracle.given = ["derivatives", config.as_dict(), training, of_padding], inputs

    @functools.cached_property
    def expected(self) -> Arrays:
        """Return the derivatives in float64, one per direction, in the order in which parameters are used."""
        found = self.oracle.expected
        return {name: found[name] for name in {**self._used, **dict.fromkeys(self.directions)}}

    def budget(self, name: str, dtype: str) -> float:
        alike = self.kinds[projection_of(name)]
        noise = max(self.oracle.noise(dtype)[each] for each in alike)
        return budget_of(noise, max(np.abs(self.expected[each]).max() for each in alike), dtype)

    def along(self, gradients: Mapping[str, np.ndarray]) -> Arrays:
        """Return the product of each gradient and each direction, except for gradients with a wrong shape."""
        shapes = {name: tuple(part.shape[1] for part in found) for name, found in self.directions.items()}
        given = {name: gradients[name] for name in shapes if name in gradients}
        return {
            name: along(value, self.directions[name]) for name, value in given.items() if value.shape == shapes[name]
        }

    @property
    def _at_once(self) -> int:
        """The number of derivatives per forward pass; 1 if rows of a batch cannot have different perturbations."""
        if not rows_are_apart(self.config, training=self.training):
            return 1
        most = AT_ONCE_OF_A_LARGE_ONE if self.is_large else AT_ONCE
        return max(1, most // (self.targets.size * self.config.stack_vocab_size(self.config.stacks[-1])))

    def _run(self, arrays: Arrays, tap: Tap) -> None:
        every = [(name, index) for name, parts in self.directions.items() for index in range(len(parts[0]))]
        found: dict[str, list[float]] = defaultdict(list)
        for begin in range(0, len(every), self._at_once):
            some = every[begin : begin + self._at_once]
            for (name, _), value in zip(some, self._derivatives(arrays, some), strict=True):
                found[name].append(value)
        for name, values in found.items():
            tap(name, np.array(values))

    def _derivatives(self, arrays: Arrays, some: Sequence[tuple[str, int]]) -> list[float]:
        size, parameters = len(self.targets), dict[str, Any](arrays)
        if self._at_once == 1:
            ((name, index),) = some
            parameters[name] = _perturbed(arrays[name], self.directions[name], index)
        for name, parts in self.directions.items() if self._at_once > 1 else ():
            mine = {row: index for row, (other, index) in enumerate(some) if other == name}
            used = functools.partial(self._used.setdefault, name)
            parameters[name] = Leaning(arrays[name], of_rows(parts, mine, len(some), size), used=used)
        return self.of_batches(parameters, len(some))

    def of_batches(self, parameters: dict[str, Any], count: int) -> list[float]:
        """Return the derivatives of `count` stacked batches, each with its own perturbed parameters."""
        size = len(self.targets)
        inputs = {name: repeated(value, count) for name, value in self.inputs.items()}
        masks = {name: repeated(value, count) for name, value in (self.masks or {}).items()}
        drop = dropping(masks, self.config.dropout) if masks else identity
        routers: dict[str, np.ndarray] = {}
        tap = of_routers(routers, drop) if self.routers else drop
        logits = transformer(self.config, parameters, **inputs, training=self.training, tap=tap)
        each = logits.reshape(count, size, *logits.shape[1:])
        values = [self.loss(rows, self.targets, self.config.pad_id) for rows in each]
        if self.routers:
            parts = {name: value.reshape(count, size, *value.shape[1:]) for name, value in routers.items()}
            of_each = ({name: part[index] for name, part in parts.items()} for index in range(count))
            values = [value + self.routers(given) for value, given in zip(values, of_each, strict=True)]
        return [value.imag / value.real.dtype.type(STEP) for value in values]


def _perturbed(value: np.ndarray, parts: Directions, index: int) -> np.ndarray:
    toward = functools.reduce(np.multiply.outer, [part[index] for part in parts])
    perturbed: np.ndarray = value + 1j * STEP * toward.astype(value.dtype)
    return perturbed


def targets_of(config: TransformerConfig, inputs: Arrays) -> np.ndarray:
    """Return the input tokens shifted by one position, including padding."""
    return np.roll(inputs[config.input_names[-1]], -1, axis=1)


ALL_AT_ONCE = 8
"""Directions that change all parameters; almost every direction reveals a wrong gradient."""

FAINTEST = 1e-2
"""A direction is divided by the norm of the parameter's gradient, but at least by this share of the median norm. The
true gradient of a key's bias is often 0, and a tiny divisor would amplify rounding."""

POINTS = 3
"""The largest number of points at which rounding is measured; one point is enough for most right gradients."""


class Together:
    """Derivatives along directions that change all parameters. `each` has the derivatives of single parameters. The
    norms of the port's `gradients` scale the directions."""

    def __init__(self, each: Derivatives, gradients: Mapping[str, np.ndarray], known: list[str]) -> None:
        self.each, random = each, np.random.default_rng(8)
        sizes = {name: float(np.linalg.norm(np.asarray(gradients[name], np.float32))) for name in known}
        usual = float(np.median([size for size in sizes.values() if 0 < size < np.inf] or [1.0]))
        sizes = {name: max(size, FAINTEST * usual) if size < np.inf else usual for name, size in sizes.items()}
        drawn = {
            name: [random.normal(size=(ALL_AT_ONCE, part.shape[1])) for part in each.directions[name]] for name in known
        }
        self.directions = {name: (first / sizes[name], *others) for name, (first, *others) in drawn.items()}
        self.oracle = Oracle(self._run, each.oracle.arrays, neighbours=POINTS)

    def along(self, gradients: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.sum([along(gradients[name], parts) for name, parts in self.directions.items()], axis=0)

    def _run(self, arrays: Arrays, tap: Tap) -> None:
        parameters, size = dict[str, Any](arrays), len(self.each.targets)
        if not rows_are_apart(self.each.config, training=self.each.training):
            every = range(ALL_AT_ONCE)
            steps = [{n: _perturbed(arrays[n], parts, i) for n, parts in self.directions.items()} for i in every]
            tap("together", np.concatenate([self.each.of_batches(parameters | step, 1) for step in steps]))
            return
        for name, parts in self.directions.items():
            parameters[name] = Leaning(arrays[name], tuple(np.repeat(part, size, axis=0) for part in parts))
        tap("together", np.array(self.each.of_batches(parameters, ALL_AT_ONCE)))


def loss_and_gradients(
    config: TransformerConfig, parameters: Parameters, targets: np.ndarray, *, training: bool = False, **tokens: Any
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the loss and its gradients, faster than the reference's function."""
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
            mine = {row: number for row, (other, number) in enumerate(some) if other == name}
            shape = parameters[name].shape
            numbers = np.indices(shape).reshape(len(shape), -1)
            # The direction of an entry is the outer product of unit vectors.
            units = tuple(np.eye(size)[index] for size, index in zip(shape, numbers, strict=True))
            changed[name] = Leaning(parameters[name], of_rows(units, mine, len(some), len(targets)))
        given: dict[str, Any] = {name: repeated(value, len(some)) for name, value in tokens.items()}
        logits = transformer(config, changed, **given, training=training)
        of_each = logits.reshape(len(some), *targets.shape, -1)
        for (name, number), its_logits in zip(some, of_each, strict=True):
            loss = cross_entropy(its_logits, targets, config.pad_id)
            found[name][number] = loss.imag / loss.real.dtype.type(STEP)
    gradients = {name: value.reshape(parameters[name].shape) for name, value in found.items()}
    return loss_of(config, parameters, targets, training=training, **tokens), gradients


def training_oracle(
    config: TransformerConfig,
    parameters: Arrays,
    batches: Sequence[Arrays],
    training: Training,
    by: Callable[..., tuple[list[float], Arrays]] | None = None,
) -> Oracle:
    """Return the oracle of training: `losses` and parameters. `by` replaces the reference's `train`."""

    trained = by or functools.partial(train, differentiate=loss_and_gradients)

    def run(arrays: Arrays, tap: Tap) -> None:
        losses, learned = trained(config, arrays, batches, training)
        for name, value in {"losses": np.array(losses), **learned}.items():
            tap(name, value)

    oracle = Oracle(run, parameters, neighbours=2)
    if by is None:
        inputs = {f"{step}.{name}": value for step, batch in enumerate(batches) for name, value in batch.items()}
        oracle.given = ["training", config.as_dict(), dataclasses.asdict(training)], inputs
    return oracle
