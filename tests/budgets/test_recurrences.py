"""A recurrence may be computed in chunks, as ports do; a recurrence that omits a decay diverges."""

from __future__ import annotations

from typing import Any
from unittest import mock

import numpy as np
import pytest

from transparity_conformance.oracle import variants as recurrence
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.models import LogitsOracle
from transparity_conformance.report.comparison import gap
from transparity_numpy.transformer import transformer

RECURRENT = next(config for config in CASES.values() if config.is_recurrent)
RULE = "transparity_numpy.mixers.gated_delta.gated_delta_rule"


@pytest.fixture(scope="module", params=range(3))
def probe(request: pytest.FixtureRequest) -> Probe:
    config, length = RECURRENT, RECURRENT.max_length
    parameters = probe_parameters(config, 100 + request.param)
    return Probe("recurrent", "mixed", "", config, parameters, mixed_inputs(config, 3, length, length))


def logits(probe: Probe, rule: Any) -> np.ndarray:
    """Return the float32 logits of a port whose state follows `rule`."""
    inputs: dict[str, Any] = dict(probe.inputs)
    with mock.patch(RULE, rule):
        return np.asarray(transformer(probe.config, probe.parameters, **inputs))


def share(probe: Probe, rule: Any) -> float:
    """Return the largest error as a share of two budgets: one measured at many points, and one for a single call."""
    oracles = probe.oracle, LogitsOracle(probe.config, probe.parameters, probe.inputs)
    found = logits(probe, rule)
    return max(gap(found, each.expected["logits"]) / each.budget("logits", "float32") for each in oracles)


def test_a_port_by_chunks_is_right(probe: Probe) -> None:
    assert share(probe, recurrence.gated_delta_rule) <= 1


def test_a_port_by_chunks_that_forgets_a_decay_is_wrong(probe: Probe) -> None:
    def forgetful(query: Any, key: Any, value: Any, log_decay: Any, beta: Any, state: Any) -> Any:
        log_decay = log_decay.copy()
        log_decay[:, :, 3] = 0
        return recurrence.gated_delta_rule(query, key, value, log_decay, beta, state)

    assert share(probe, forgetful) > 1
