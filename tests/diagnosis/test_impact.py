"""The report tells for how many real tokens the logits change, and for how many the predicted token changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from meta.pool.port import port_with
from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.check.terminal import as_text
from transparity_numpy.transformer import transformer

Change = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps the logits and the target's tokens to the port's logits."""


def port(change: Change) -> Callable[..., Any]:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., np.ndarray]:
        return lambda **tokens: change(transformer(config, parameters, **tokens), tokens["target"])

    return build


def at_padding(logits: np.ndarray, target: np.ndarray) -> np.ndarray:
    return logits + (target == 0)[..., None]


def of_one_token(logits: np.ndarray, target: np.ndarray) -> np.ndarray:
    logits = logits.copy()
    logits[0, 0] = -logits[0, 0]
    return logits


@pytest.mark.long
def test_a_difference_at_padding_alone_is_said_to_be_one() -> None:
    report = check(port(at_padding), "translation", logits_only=True, budget=0)
    impact = report.faults[0].impact
    assert impact is not None and report.verdict == "diverges"
    assert (impact.positions["changed"], impact.argmax_changes, impact.at_padding_only) == (0, 0, True)
    assert "Effect: logits change only at padding." in as_text([report])


def test_real_tokens_and_predictions_are_counted() -> None:
    report = check(port(of_one_token), "translation", logits_only=True, budget=0)
    impact, tried = report.faults[0].impact, probes("translation")
    assert impact is not None and not impact.at_padding_only
    assert impact.positions["changed"] == impact.argmax_changes == len(tried)
    real = sum(int((probe.inputs["target"] != 0).sum()) for probe in tried.values())
    assert impact.positions["of"] == real
    says = f"Effect: the logits of {len(tried)} of {real} tokens change, the predicted token of {len(tried)}."
    assert says in as_text([report])


@pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])
def test_every_divergence_has_its_own_impact(logits_only: bool) -> None:
    port = port_with("bias-dropped-head", "bias-dropped-up-of-one-layer")
    report = check(port, "translation", logits_only=logits_only)
    impacts = [fault.impact for fault in report.faults]
    assert all(impact is not None and impact.positions["changed"] > 0 for impact in impacts)
    assert as_text([report]).count("the predicted token of ") == len({str(fault.causes) for fault in report.faults})
