"""Evidence of a disagreement reaches the agreement matrix, also where the test that found it fails."""

from __future__ import annotations

import pytest
from hypothesis import strategies

from meta.planting.planted import file_path, planted
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import probes_of
from transparity_conformance.report.agreement.matrix import fold
from transparity_conformance.suite import test_drawn
from transparity_conformance.suite.plugin import Ledger


def test_a_drawn_disagreement_reaches_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    text = file_path("transparity_pytorch", "head").read_text()
    wrong = text.replace("x = x * config.head_input_scale", "x = x * 1")
    assert wrong != text
    ledger, inputs = Ledger(), probes_of(CASES["t5"], "t5")["mixed"].inputs
    monkeypatch.setattr(test_drawn, "models", lambda: strategies.just((CASES["t5"], 0, inputs)))
    with planted("transparity_pytorch", "head", wrong) as build:
        monkeypatch.setattr(test_drawn, "backend", lambda name: build)
        with pytest.raises(AssertionError, match=r"drawn\.configurations, pytorch"):
            test_drawn.test_drawn_configurations_agree("pytorch", "quick", ledger)
    assert fold(ledger.evidence).verdict == "diverges"
