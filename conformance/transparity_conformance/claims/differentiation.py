"""Gradients: what each framework's reverse mode says, held to the reference's own derivatives, by the complex step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from transparity.presets import PRESETS, preset
from transparity_conformance.bench import Bench
from transparity_conformance.cases import CASES
from transparity_conformance.claims import WIDE, claim
from transparity_conformance.derivatives import Derivatives
from transparity_conformance.evidence import Evidence
from transparity_conformance.oracle import Arrays
from transparity_conformance.probes import mixed_inputs, probe_parameters


@functools.cache
def derivatives(case: str) -> tuple[Derivatives, Arrays]:
    """Of a preset, or another case, with few layers, and its parameters; `batch` is a model in training that normalises
    by the batch, `unread` one whose encoder nobody reads, for there are no layers to: its gradients are zero."""
    layers = {"notes-lm": 2, "unread": 0}.get(case, 1)
    training = case == "batch"
    config = CASES[case] if case in CASES else preset("translation" if case in ("batch", "unread") else case).resized()
    config = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=layers)
    config = dataclasses.replace(config, norm="batch") if training else config
    parameters = probe_parameters(config, 6)
    return Derivatives(config, parameters, mixed_inputs(config), training=training), parameters


def gradients_agree(bench: Bench, claim: str, case: str, ours: Derivatives, parameters: Arrays) -> Iterator[Evidence]:
    """Every gradient of the backend's model, held to the derivatives along their directions."""
    forward, tokens = bench.forward(ours.config, parameters), dict[str, Any](ours.inputs)
    _, gradients = forward.loss_and_gradients(ours.targets, training=ours.training, masks=ours.masks, **tokens)
    actual, record = ours.along(gradients), bench.evidence(claim, case)
    yield record.exactly("parameters that have a gradient", sorted(gradients) == sorted(ours.expected), True)
    for name, expected in ours.expected.items():
        budget = ours.budget(name, bench.subject.dtype)
        yield record.within(name, actual.get(name, np.empty(0)), expected, budget)


def _gradients(bench: Bench, claim: str, cases: Iterable[str]) -> Iterator[Evidence]:
    for case in cases:
        yield from gradients_agree(bench, claim, case, *derivatives(case))


@claim(dtypes=WIDE, quick=("float32",))
def gradients_of_a_model(bench: Bench) -> Iterator[Evidence]:
    """The gradient of the loss by every parameter of a language model is the derivative by the complex step."""
    yield from _gradients(bench, "differentiation.gradients_of_a_model", ["notes-lm"])


@claim(dtypes=("float64",), quick=())
def gradients_of_every_preset(bench: Bench) -> Iterator[Evidence]:
    """The same of every preset, to the last digits, and where parameters are hard to reach.

    That is: a model in training that normalises by the batch, and one without decoder layers.
    """
    yield from _gradients(bench, "differentiation.gradients_of_every_preset", [*PRESETS, "batch", "unread"])


@claim(dtypes=("float64",), quick=())
def gradients_of_every_case(bench: Bench) -> Iterator[Evidence]:
    """The same with rotary and relative positions, gates, grouped heads, caps, tied heads and shared embeddings."""
    cases = [case for case, config in CASES.items() if config.head == "logits"]
    cases = cases if bench.backend.modes[0] == "eager" else ["qwen", "gemma", "t5"]
    yield from _gradients(bench, "differentiation.gradients_of_every_case", cases)
