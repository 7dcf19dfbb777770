"""Recorded operations tell causes apart, show the line of a wrong step with a cache, and find the chosen experts."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.listening.common import is_same

from meta.pool.bug import View
from meta.pool.judge import is_named, is_placed, place_of, says
from meta.pool.port import pool, port_with
from meta.pool.trials import Trial
from transparity.config import TransformerConfig
from transparity_conformance import check
from transparity_conformance.capabilities.decoding.steps import StepRequest
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.lines.cached import with_line_of_step
from transparity_conformance.identify.alignment.plan import plan_of, read
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probe_parameters, probes_of
from transparity_conformance.oracle.reach.models import ReachModel, few_calls
from transparity_conformance.report.report import Divergence, Report
from transparity_conformance.running.process.running import built, listen_in_full, run_listening
from transparity_numpy.transformer import transformer

with warnings.catch_warnings():  # import warnings do not concern this project
    warnings.simplefilter("ignore")


def heard(build: Any, probe: Probe) -> Arrays:
    """Return the taps that the checker finds by value in a port."""
    taps, operations = run_listening(built(build, probe), probe)
    plan = plan_of(probe, operations, taps["logits"], "float32", Clock())
    return read(plan, probe, operations, taps["logits"])[0]


def wrong(probe: Probe, found: Arrays) -> set[str]:
    """Return the names of taps that the reference computes differently from the taps before them."""
    ours = walk(probe, found)
    return {tap.split(".", 3)[-1] for tap, value in found.items() if not is_same(value, ours[tap])}


def test_more_experts_that_are_chosen_are_found_where_what_follows_is_made_from_them() -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Arrays]:
        """Return the NumPy column in float32, which chooses one expert too many."""
        more = dataclasses.replace(config, experts_per_token=3)
        cast = {name: value.astype(np.float32) for name, value in parameters.items()}
        return lambda **inputs: {"logits": transformer(more, cast, **inputs)}

    row = aligned_probe(next(iter(probes_of(MODELS["deepseek"], "deepseek").values())))
    found = heard(build, row)
    assert wrong(row, found) == {"feed_forward.router_chosen"}
    chosen = [value for tap, value in found.items() if tap.endswith("router_chosen")]
    assert chosen and all(np.all(each.sum(-1) == 3) for each in chosen)


Answer = dict[str, Any]


def answer_to(case: str, id: str, view: View = "operations") -> Answer:
    """Check a port with a bug from the pool."""
    return Trial("fault", case, (pool()[id],), view).run()


def assert_right(answer: Answer, id: str) -> None:
    bugs = [pool()[id]]
    assert is_named(bugs, answer) and is_placed(bugs, answer), says(answer)
    assert all(fault["causes"] for fault in answer["faults"])


RIGHT: list[tuple[str, str, View, str]] = [
    ("bloom", "embedding-scale-unwanted", "operations", ""),
    ("modern-bert", "embedding-scale-unwanted", "operations", ""),
    ("deepseek", "latent-norm-eps-small", "taps", ""),
    ("qwen3-next", "gated-norm-delta-eps", "taps", ""),
    ("mamba2", "gated-norm-ssm-eps", "taps", ""),
    ("notes-lm", "dropout-active-embedding", "operations", "decoder.embedding"),
    ("notes-lm", "dropout-active-weights", "operations", "decoder.layers.0.self_attention.weights"),
    ("notes-lm", "dropout-active-sublayer", "operations", "decoder.layers.0.self_attention.output"),
]
"""Bugs, the view of the checker, and the tap where dropout is reported.

A factor before a norm changes the result only through eps.
"""


@pytest.mark.parametrize(("case", "id", "view", "place"), RIGHT, ids=str)
def test_a_cause_that_operations_tell_is_named_and_placed(case: str, id: str, view: View, place: str) -> None:
    answer = answer_to(case, id, view)
    assert_right(answer, id)
    assert not place or place_of(answer["faults"][0]) == place


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
