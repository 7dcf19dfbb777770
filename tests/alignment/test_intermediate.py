"""The checker knows the reference's values between taps, so a port's intermediate steps are not reported as faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from transparity_conformance.identify.alignment.known_faults import Recorded
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.probes import mixed_inputs, probe_parameters
from transparity_numpy.transformer import transformer

WRITTEN = {"qwen3-next": {"decoder.layers.0.recurrence.context"}}
"""Taps that a port assembles position by position in an array of zeros; all of their inputs are taps too."""


@pytest.mark.parametrize("case", MODELS)
def test_everything_between_two_taps_of_the_reference_is_recorded(case: str) -> None:
    config, lost = MODELS[case], set[str]()
    tokens: dict[str, Any] = dict(mixed_inputs(config, 0, 9, 7))
    parameters = {name: np.asarray(value, np.float64) for name, value in probe_parameters(config).items()}

    def tap(name: str, value: Any) -> Any:
        if not isinstance(value, Recorded):
            lost.add(name)
        return np.asarray(value).view(Recorded)

    with np.errstate(all="ignore"):
        recorded = {name: value.view(Recorded) for name, value in parameters.items()}
        transformer(config, recorded, tap=tap, **tokens)
    assert lost == WRITTEN.get(case, set())
