"""Gradients by each framework's reverse mode, also with shared masks of dropout, compared with the reference's
derivatives by the complex step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.presets import PRESETS, preset
from transparity.taps import lengths_of
from transparity.training import dropout_masks
from transparity_conformance.oracle.budgets import WIDE
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.differentiation.derivatives import Derivatives
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim

_TRANSLATION, _NOTES = preset("translation").resized(), preset("notes-lm").resized()

HARD_TO_REACH: dict[str, TransformerConfig] = {
    "batch": dataclasses.replace(_TRANSLATION, norm="batch"),
    "batch-decoder": dataclasses.replace(_NOTES, norm="batch"),
    "unread": dataclasses.replace(_TRANSLATION, num_decoder_layers=0),
}
"""Models in training that normalise by the batch, and one whose encoder is not read by any layer: its gradients are
zero."""


@functools.cache
def derivatives(case: str) -> tuple[Derivatives, Arrays]:
    """Of a preset, or another case, with few layers, and its parameters."""
    config = (CASES | HARD_TO_REACH).get(case) or preset(case).resized()
    layers = min(config.num_decoder_layers, 2 if case == "notes-lm" else 1)
    config = dataclasses.replace(config, num_encoder_layers=1, num_decoder_layers=layers)
    parameters = probe_parameters(config, 6)
    return Derivatives(config, parameters, mixed_inputs(config), training=config.norm == "batch"), parameters


def gradients_agree(bench: Bench, claim: str, case: str, ours: Derivatives, parameters: Arrays) -> Iterator[Evidence]:
    """Compare every gradient of the backend's model with derivatives along drawn directions."""
    forward, tokens = bench.forward(ours.config, parameters), dict[str, Any](ours.inputs)
    _, gradients = forward.loss_and_gradients(ours.targets, training=ours.training, masks=ours.masks, **tokens)
    actual, record = ours.along(gradients), bench.evidence(claim, case)
    yield record.exactly("parameters that have a gradient", sorted(gradients) == sorted(ours.expected), True)
    for name, expected in ours.expected.items():
        budget = ours.budget(name, bench.subject.dtype)
        yield record.within(name, actual.get(name, np.empty(0)), expected, budget)


OF_FAMILIES = tuple(case for case, config in CASES.items() if config.head == "logits")
FEW = ("qwen", "gemma", "t5", "qwen3-next", "mamba2")
"""The cases of families if every model is compiled."""


@claim(
    dtypes=WIDE,
    quick=("float32",),
    cases=("notes-lm",),
    all_cases=[*PRESETS, *HARD_TO_REACH, *OF_FAMILIES],
    all_in=("float64",),
)
def model_gradients(bench: Bench, cases: Iterable[str]) -> Iterator[Evidence]:
    """The gradient of the loss by every parameter of a model is its derivative by the complex step."""
    left_out = set(OF_FAMILIES) - set(FEW) if bench.backend.modes[0] != "eager" else ()
    for case in cases:
        if case not in left_out:
            yield from gradients_agree(bench, "differentiation.model_gradients", case, *derivatives(case))


RATE = 0.3


@functools.cache
def dropped(case: str) -> tuple[Derivatives, Arrays]:
    """A preset with few layers and a rate of dropout, with masks; and its parameters."""
    config = dataclasses.replace(preset(case).resized(num_encoder_layers=1, num_decoder_layers=1), dropout=RATE)
    parameters, inputs = probe_parameters(config, 8), mixed_inputs(config)
    lengths = lengths_of(config, inputs)
    batch = len(inputs[config.input_names[0]])
    masks = dropout_masks(config, np.random.default_rng(9), batch, **lengths)
    return Derivatives(config, parameters, inputs, masks=masks), parameters


@claim(topic="dropout", dtypes=("float32",), cases=("pre-norm",), all_cases=PRESETS, all_in=("float64",))
def gradients_with_shared_masks(bench: Bench, cases: Iterable[str]) -> Iterator[Evidence]:
    """With shared dropout masks the gradients of the loss are its derivatives by the complex step."""
    for case in cases:
        yield from gradients_agree(bench, "dropout.gradients_with_shared_masks", case, *dropped(case))
