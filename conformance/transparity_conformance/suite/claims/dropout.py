"""Dropout: with the same masks, the frameworks have the same gradients, for the dropout of every document."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

import numpy as np

from transparity.presets import PRESETS, preset
from transparity.taps import lengths_of
from transparity.training import dropout_masks
from transparity_conformance.oracle.differentiation.derivatives import Derivatives
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_conformance.report.comparison import Evidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import claim
from transparity_conformance.suite.claims.differentiation import gradients_agree

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


@claim(dtypes=("float32",), cases=("pre-norm",), all_cases=PRESETS, all_in=("float64",))
def gradients_with_shared_masks(bench: Bench, cases: Iterable[str]) -> Iterator[Evidence]:
    """With shared dropout masks the gradients of the loss are its derivatives by the complex step."""
    for case in cases:
        yield from gradients_agree(bench, "dropout.gradients_with_shared_masks", case, *dropped(case))
