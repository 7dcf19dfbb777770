"""Test that operations distinguish causes, and that reports name the wrong line of a cache, a mask or rotary angles."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.listening.common import is_same

from meta.pool.port import port_with
from transparity_conformance import check
from transparity_conformance.capabilities.decoding.steps import StepRequest
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.calls import with_line_of_step
from transparity_conformance.identify.alignment.found import Flow
from transparity_conformance.identify.alignment.gaps import reordered
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probe_parameters
from transparity_conformance.oracle.reach.models import ReachModel, few_calls
from transparity_conformance.report.report import Divergence, Report


def wrong(probe: Probe, found: Arrays) -> set[str]:
    """Return the last parts of the names of taps that differ if the reference uses the port's earlier taps."""
    ours = walk(probe, found)
    return {tap.split(".", 3)[-1] for tap, value in found.items() if not is_same(value, ours[tap])}


LINES = {
    "from-0": "return where - where[:, :1]",
    "one-too-high": "return (where + int(where[0, 0] > 0))",
    "queries-from-0": "where = where - where[:, :1] if role",
    "keys-unrotated": "return torch.cat([old_key, key], 2), value",
}
"""The expected line of the port, by the fault's id."""


@pytest.mark.parametrize("id", LINES)
def test_the_line_of_a_wrong_step_is_where_its_fault_is_written(id: str) -> None:
    report = check(
        port_with(f"cache-position-{id}", taps=False, offers="step"), "llama", config=example_config("llama")
    )
    (found,) = (each for each in report.faults if each.where == "step")
    assert found.source is not None and LINES[id] in found.source["code"]


def test_steps_across_a_threshold_have_a_line() -> None:
    config = example_config("llama")
    probe = ReachModel("long", config, probe_parameters(config), few_calls(config)).probe(1, (8,))
    port = port_with("cache-position-from-0", taps=False, offers="step")(config, probe.parameters)
    fault = Divergence("step", 1.0, probe.budget("float32"), probe=probe.name)
    report = Report("", "diverges", "step", (fault,))
    request = StepRequest("across a threshold", probe, (6, 1, 1))
    found = with_line_of_step(report, None, [request], {id(probe.parameters): port}).faults[0]
    assert found.source is not None and LINES["from-0"] in found.source["code"]


Order = tuple[int, ...]


def in_order(x: torch.Tensor, order: Order) -> torch.Tensor:
    kept = x.shape[-1] - len(order)
    return torch.cat([x[..., :kept], x[..., kept:][..., list(order)]], -1) if order else x


def test_the_line_of_a_norm_that_comes_too_late_is_its_call() -> None:
    """The line of the norm's formula is right: it also computes the right norms of the layers."""
    report = check(port_with("query-key-norm-after-rotation", taps=False), "qwen3", config=example_config("qwen3"))
    told = {(fault.causes[0].mistake, (fault.source or {})["code"]) for fault in report.faults}
    assert told == {("query-key-norm", 'x = self.tap(f"{at}.{role}_norm", self.rms(x, gain))')}


def test_the_line_of_a_wrong_mask_is_where_the_port_makes_it() -> None:
    report = check(port_with("window-size-one-more", taps=False), "notes", config=example_config("mistral"))
    codes = {(fault.source or {})["code"] for fault in report.faults}
    assert codes == {"return ((torch.arange(keys) - where[..., None]).abs() <= window)[:, None]"}


SHAPES = {"scope.query_rotated": (1, 4, 5, 10), "scope.key_rotated": (1, 2, 5, 10)}


@pytest.mark.parametrize(
    ("orders", "is_one"),
    [
        (((2, 0, 1), (2, 0, 1)), True),
        (((2, 0, 1), ()), False),
        (((), (2, 0, 1)), False),
        (((2, 0, 1), (1, 2, 0)), False),
    ],
)
def test_queries_and_keys_are_found_in_one_order_of_features_alone(
    orders: tuple[Order, Order], *, is_one: bool
) -> None:
    rng = np.random.default_rng(0)
    ours = {tap: rng.normal(size=shape) for tap, shape in SHAPES.items()} | {"scope.scores": np.zeros((1, 4, 5, 5))}
    turned = [in_order(torch.tensor(ours[tap]), order) for tap, order in zip(SHAPES, orders, strict=True)]
    values = [turned[0].numpy(), turned[1].mT.numpy()]  # many ports transpose the keys for the product
    port = Recorded([Operation("aten.mm", value, (), ()) for value in values], np.zeros(1), 4)
    flow = Flow({"scope.scores": frozenset(SHAPES)}, {})
    found: Any = SimpleNamespace(ours=ours, port=port, flow=flow, matches={})
    matches = reordered(found)
    assert set(matches) == (set(SHAPES) if is_one else set())
    for tap, match in matches.items():
        assert np.array_equal(match.layout.to_ours(values[match.index]), ours[tap])
        assert not match.layout.is_in_order
    found.matches = {"scope.key_rotated": None}
    assert not reordered(found), "reordered keys need reordered queries"
