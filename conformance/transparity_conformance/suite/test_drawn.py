"""Test backends on random configurations. Hypothesis reduces a failure to a small configuration."""

import pytest
from hypothesis import HealthCheck, given, settings

from transparity.config import TransformerConfig
from transparity.protocol import Backend
from transparity_conformance.oracle.backends import REFERENCE, backend, installed, pinned
from transparity_conformance.oracle.budgets import neighbours_of_drawn
from transparity_conformance.oracle.oracle import Arrays, forward_oracle
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.oracle.strategies import models
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence
from transparity_conformance.suite.bench import ClaimRecord
from transparity_conformance.suite.plugin import Ledger

EXAMPLES = {"flax": (8, 30)}
"""The numbers of random configurations in the quick suite and in the full suite; Flax has few, because Flax compiles
each shape."""


def drawn_evidence(
    build: Backend, config: TransformerConfig, seed: int, inputs: Arrays, mode: str | None = None
) -> list[ClaimEvidence]:
    """Compare all activations in float64, and the logits of the fast path in the backend's first dtype."""
    parameters, mode = probe_parameters(config, seed), mode or build.modes[0]
    oracle = forward_oracle(config, parameters, inputs, neighbours=neighbours_of_drawn(inputs))
    traced, fast = (
        ClaimRecord("drawn.configurations", BackendSubject(build.name, dtype, "cpu", mode), "drawn")
        for dtype in ("float64", build.dtypes[0])
    )
    with pinned(build.name):
        taps = build(config, parameters, dtype="float64", mode=mode)(**inputs)
        logits = build(config, parameters, dtype=build.dtypes[0], mode=mode).logits(**inputs)
        return [*traced.taps(oracle, taps), fast.oracle(oracle, "logits by the fast path", logits, "logits")]


@pytest.mark.parametrize("name", [name for name in installed() if name != REFERENCE])
@pytest.mark.parametrize("effort", ["quick", pytest.param("thorough", marks=[pytest.mark.slow, pytest.mark.long])])
def test_drawn_configurations_agree(name: str, effort: str, ledger: Ledger) -> None:
    examples = EXAMPLES.get(name, (60, 300))[effort == "thorough"]

    @settings(
        max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(models())
    def agree(model: tuple[TransformerConfig, int, Arrays]) -> None:
        config, seed, inputs = model
        evidence = drawn_evidence(backend(name), config, seed, inputs)
        ledger.evidence += evidence  # before the assertion, so that the matrix also shows wrong results
        wrong = [str(item) for item in evidence if not item.agrees]
        shown = {key: tokens.tolist() for key, tokens in inputs.items()}
        assert not wrong, f"{wrong[0]}\n{config.to_json()}weights: probe_parameters(config, {seed})\ninputs: {shown}"

    agree()
