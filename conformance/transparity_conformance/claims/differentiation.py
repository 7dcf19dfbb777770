"""Gradients: what each framework's reverse mode says, held to the reference's own derivatives, by the complex step.

A gradient is tried along random directions, a few for each parameter: there its product with the direction is the
derivative of the loss, and one wrong number anywhere shows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from transparity.differentiation import Parameters, loss_of
from transparity.functional import derivative
from transparity.parameters import is_learned
from transparity.presets import PRESETS, preset
from transparity.taps import Tap
from transparity_conformance.bench import Bench
from transparity_conformance.claims import WIDE, claim
from transparity_conformance.evidence import Evidence
from transparity_conformance.oracle import Arrays, Oracle
from transparity_conformance.probes import mixed_inputs, probe_parameters

DIRECTIONS = 2

Directions = dict[str, np.ndarray]
"""For each learned parameter, `DIRECTIONS` of its shape."""


def kind_of(name: str) -> str:
    """`query.weight` of every attention: what rounds alike, and shares a budget."""
    return ".".join(name.split(".")[-2:])


def directions_of(parameters: Arrays) -> Directions:
    random = np.random.default_rng(7)
    return {
        name: random.normal(size=(DIRECTIONS, *value.shape)) for name, value in parameters.items() if is_learned(name)
    }


class Trial:
    """A preset with few layers; `batch` is one that normalises by the batch, in training."""

    def __init__(self, case: str) -> None:
        self.training = case == "batch"
        config = preset("translation" if self.training else case).resized(num_encoder_layers=1, num_decoder_layers=2)
        self.config = dataclasses.replace(config, norm="batch") if self.training else config
        self.parameters = probe_parameters(self.config, 6)
        self.inputs = mixed_inputs(self.config)
        # The tokens one further, with padding among them.
        self.targets = np.roll(self.inputs[self.config.input_names[-1]], -1, axis=1)
        self.directions = directions_of(self.parameters)
        self.oracle = Oracle(self._derivatives, self.parameters)

    def _derivatives(self, arrays: Arrays, tap: Tap) -> None:
        """The derivatives of the loss along the directions, those of a kind together, in the parameters' order."""

        def loss(moved: Parameters) -> np.ndarray:
            return loss_of(self.config, moved, self.targets, training=self.training, **self.inputs)

        found: dict[str, list[np.ndarray]] = defaultdict(list)
        for name, toward in self.directions.items():
            for direction in toward.astype(arrays[name].dtype):
                found[kind_of(name)].append(derivative(loss, arrays, {name: direction}))
        for kind, values in found.items():
            tap(kind, np.array(values))

    def along(self, gradients: Mapping[str, np.ndarray]) -> Arrays:
        """What `gradients` say of the loss along the directions, by parameter."""
        return {
            name: (toward * gradients[name].astype(np.float64)).reshape(DIRECTIONS, -1).sum(-1)
            for name, toward in self.directions.items()
            if name in gradients and gradients[name].shape == toward.shape[1:]
        }


trial = functools.cache(Trial)


def _gradients(bench: Bench, claim: str, cases: Iterable[str]) -> Iterator[Evidence]:
    for case in cases:
        tried = trial(case)
        forward = bench.forward(tried.config, tried.parameters)
        _, gradients = forward.loss_and_gradients(tried.targets, training=tried.training, **tried.inputs)
        actual = tried.along(gradients)
        record = bench.evidence(claim, case)
        yield record.exactly("parameters that have a gradient", sorted(actual) == sorted(tried.directions), True)
        position: dict[str, int] = defaultdict(int)
        for name in tried.directions:
            kind, begin = kind_of(name), position[kind_of(name)]
            position[kind] += DIRECTIONS
            expected = tried.oracle.expected[kind][begin : begin + DIRECTIONS]
            budget = tried.oracle.budget(kind, bench.subject.dtype)
            yield record.within(name, actual.get(name, np.empty(0)), expected, budget)


@claim(dtypes=WIDE, quick=("float32",))
def gradients_of_a_model(bench: Bench) -> Iterator[Evidence]:
    """The gradient of the loss by every parameter of a model is the derivative by the complex step."""
    yield from _gradients(bench, "differentiation.gradients_of_a_model", ["translation"])


@claim(dtypes=WIDE, quick=())
def gradients_of_every_preset(bench: Bench) -> Iterator[Evidence]:
    """The same of every preset, and of a model in training that normalises by the batch."""
    yield from _gradients(bench, "differentiation.gradients_of_every_preset", [*PRESETS, "batch"])
