"""Position tables that a port computes in float32 agree at every length; a wrong base diverges."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance import check
from transparity_conformance.oracle import variants as tables
from transparity_numpy.port import build as numpy_build

SINUSOIDAL = dataclasses.replace(preset("notes-lm").resized(), max_length=128, positions="sinusoidal")
ROTARY = dataclasses.replace(preset("notes-lm").resized(), max_length=128, positions="rotary", rope_theta=10_000.0)


def port(formula: Callable[..., np.ndarray], base: float = 1.0) -> Callable[..., Any]:
    """Return the NumPy column in float32; `formula` computes its tables in float32, with another base if given."""

    def build(config: TransformerConfig, parameters: dict[str, np.ndarray]) -> Callable[..., Any]:
        forward = numpy_build(config, parameters, dtype="float32")

        def run(**tokens: np.ndarray) -> Any:
            with mock.patch.object(tables, "frequencies", frequencies), tables.variant(1):
                return forward(**tokens)

        return run

    def frequencies(theta: float, features: int, index: int, steps: int | None = None) -> np.ndarray:
        shares = np.arange(0, features, 2, dtype=np.float32) / np.float32(steps or features)
        return formula(np.float32(theta * base), shares)

    return build


FORMULAS = {
    "exp of -i log(base)": lambda base, shares: np.exp(np.float32(-np.log(float(base))) * shares),
    "1 / base ** i": lambda base, shares: np.float32(1) / base**shares,
    "exp2": lambda base, shares: np.exp2(-shares * np.log2(base)),
}


@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("config", [SINUSOIDAL, ROTARY], ids=["sinusoidal", "rotary"])
def test_tables_built_in_float32_agree(config: TransformerConfig, formula: str) -> None:
    report = check(port(FORMULAS[formula]), config=config)
    assert report.verdict == "agrees", report


@pytest.mark.long
@pytest.mark.parametrize("config", [SINUSOIDAL, ROTARY], ids=["sinusoidal", "rotary"])
@mock.patch("transparity_conformance.diagnosis.judge.explain_all", return_value=())
def test_a_base_that_is_off_by_a_ten_thousandth_diverges(explain_all: mock.Mock, config: TransformerConfig) -> None:
    report = check(port(FORMULAS["1 / base ** i"], 1.0001), config=config, logits_only=True)
    assert report.verdict == "diverges"
