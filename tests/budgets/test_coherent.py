"""In half precision, an error within the budget diverges if it resembles a fault's effect; rounding does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from transparity_conformance import check
from transparity_conformance.diagnosis.reach import coherent
from transparity_conformance.oracle.budgets import rounded_to
from transparity_numpy.transformer import transformer
from transparity_pytorch.port import build

Change = Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]]


def a_tenth_of_the_head_bias_missing(parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return parameters | {"head.bias": parameters["head.bias"] * np.float32(0.9)}


def scores_five_per_cent_too_large(parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    query = {name: value * np.float32(1.05) for name, value in parameters.items() if ".query." in name}
    return parameters | query


def port(change: Change | None = None, dtype: str = "bfloat16") -> Any:
    """Return a port that offers only a forward pass, with parameters changed by `change`."""

    def made(config: Any, parameters: dict[str, np.ndarray]) -> Any:
        forward = build(config, change(parameters) if change else parameters, dtype=dtype)
        return lambda **tokens: forward(**tokens)  # noqa: PLW0108 - offers nothing else

    return made


@pytest.mark.parametrize("preset", ["notes-lm", "translation"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_right_port_is_not_alarmed(preset: str, dtype: str) -> None:
    report = check(port(dtype=dtype), preset=preset, dtype=dtype, logits_only=True)
    assert report.verdict == "agrees", report.notes


@pytest.mark.long
@pytest.mark.parametrize(
    ("preset", "wrong"),
    [("translation", a_tenth_of_the_head_bias_missing), ("notes-lm", scores_five_per_cent_too_large)],
)
def test_a_fault_within_the_budget_diverges(preset: str, wrong: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    report = check(port(wrong), preset=preset, dtype="bfloat16", logits_only=True)
    assert report.verdict == "diverges"
    assert any("their error contains" in note for note in report.notes)
    assert all(item.share <= 1 for item in report.measured)
    monkeypatch.setattr(coherent, "COHERENT", math.inf)  # its largest error alone would agree
    assert check(port(wrong), preset=preset, dtype="bfloat16", logits_only=True).verdict == "agrees"


def test_a_fault_under_logits_that_are_cast_is_told_from_the_cast() -> None:
    def cast(config: Any, parameters: dict[str, np.ndarray]) -> Any:
        wrong = a_tenth_of_the_head_bias_missing(parameters)
        return lambda **tokens: rounded_to(np.asarray(transformer(config, wrong, **tokens)), "bfloat16")

    report = check(cast, preset="translation", logits_only=True)
    assert report.verdict == "diverges"
    assert any("the head bias is missing" in note for note in report.notes)
    assert any(cause.mistake == "low-precision" for fault in report.faults for cause in fault.causes)
