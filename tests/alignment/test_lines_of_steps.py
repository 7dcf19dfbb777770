"""For a wrong step with a cache, the report shows the line where the step first differs from the forward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from meta.pool.port import port_with
from transparity_conformance import check
from transparity_conformance.capabilities.decoding.steps import StepRequest
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.identify.alignment.calls import with_line_of_step
from transparity_conformance.oracle.probes import probe_parameters
from transparity_conformance.oracle.reach.models import ReachModel, few_calls
from transparity_conformance.report.report import Divergence, Report
from transparity_conformance.running.process.running import listen_in_full

LINES = {
    "from-0": "return where - where[:, :1]",
    "one-too-high": "return (where + int(where[0, 0] > 0))",
    "queries-from-0": "where = where - where[:, :1] if role",
    "keys-unrotated": "return torch.cat([old_key, key], 2), value",
}
"""The expected line of the port, by the id of the fault."""


@pytest.mark.parametrize("id", LINES)
def test_the_line_of_a_wrong_step_is_where_its_fault_is_written(id: str) -> None:
    report = check(
        port_with(f"cache-position-{id}", taps=False, offers="step"), "llama", config=example_config("llama")
    )
    (found,) = (each for each in report.faults if each.where == "step")
    assert found.source is not None and LINES[id] in found.source["code"]


def test_listening_to_a_step_calls_it_once_with_its_own_cache() -> None:
    class Counting:
        def step(self, tokens: np.ndarray, cache: Any) -> tuple[np.ndarray, Any]:
            cache.append(tokens * 2)
            return np.concatenate(cache).astype(np.float64), cache

    cache = [np.array([7])]
    (logits, after), operations = listen_in_full(Counting(), "step", np.array([1]), cache)
    assert logits.tolist() == [7.0, 2.0] and after is cache and len(cache) == 2
    assert [each.value.tolist() for each in operations[:1]] == [[2.0]]  # an integer


def test_steps_across_a_threshold_have_a_line() -> None:
    config = example_config("llama")
    probe = ReachModel("long", config, probe_parameters(config), few_calls(config)).probe(1, (8,))
    port = port_with("cache-position-from-0", taps=False, offers="step")(config, probe.parameters)
    fault = Divergence("step", 1.0, probe.budget("float32"), probe=probe.name)
    report = Report("", "diverges", "step", (fault,))
    request = StepRequest("across a threshold", probe, (6, 1, 1))
    found = with_line_of_step(report, None, [request], {id(probe.parameters): port}).faults[0]
    assert found.source is not None and LINES["from-0"] in found.source["code"]
