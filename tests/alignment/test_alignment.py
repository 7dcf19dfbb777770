from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.listening.common import is_same

from meta.independent.model import Model
from meta.pool.port import CASES, port_with
from transparity_conformance import check
from transparity_conformance.capabilities.decoding.steps import step_request
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.calls import with_line_of_step
from transparity_conformance.identify.alignment.found import Flow
from transparity_conformance.identify.alignment.gaps import reordered
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import Plan, plan_of, read
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.recorded import Recorded, layouts
from transparity_conformance.oracle.probes import Probe, probe_parameters, probes_of
from transparity_conformance.oracle.reach.models import ReachModel, few_calls
from transparity_conformance.report.report import Divergence, Report
from transparity_conformance.running.process.running import run_listening


def heard(port: Any, probe: Probe) -> tuple[Plan, dict[str, np.ndarray]]:
    taps, operations = run_listening(port, probe)
    plan = plan_of(probe, operations, taps["logits"], "float32", Clock())
    return plan, read(plan, probe, operations, taps["logits"])[0]


@pytest.mark.parametrize("name", ["translation", "notes-lm", "pre-norm", "llama", "gemma", "bloom", "t5", "bert"])
def test_every_tap_of_a_right_port_is_found_with_its_own_numbers(name: str) -> None:
    probe = aligned_probe(next(iter(probes_of(CASES[name], name).values())))
    port = Model(probe.config, probe.parameters)
    _, taps = heard(port, probe)
    assert taps.keys() == probe.oracle.expected.keys()
    for tap, value in port.heard.items():
        expected = value.double().numpy()
        assert is_same(taps[tap], expected.reshape(taps[tap].shape)), tap


FIVE = (
    *("norm-eps-placement-rms", "rotary-base-10000", "rotary-direction-both"),
    *("head-grouping-tiled", "gate-swapped"),
)
ONE_SIGN = ("rotary-direction-both", "right-scaled-query")
"""The ids of a fault (a rotation in the wrong direction) and of a correct change (scaled queries instead of scaled
scores)."""


@pytest.mark.parametrize("bugs", [FIVE, ONE_SIGN], ids=["five", "one sign"])
def test_taps_are_found_between_faults_that_follow_each_other(bugs: tuple[str, ...]) -> None:
    """Both ports rotate queries and keys wrongly before they compute the scores. The port of `FIVE` also has wrong
    heads, norms and gates."""
    probe = aligned_probe(probes_of(CASES["llama"], "llama")["tiny"])
    port: Any = port_with(*bugs, taps=False)(probe.config, probe.parameters)
    plan, taps = heard(port, probe)
    assert plan.matches.keys() == probe.oracle.expected.keys()
    for tap in [tap for tap in taps if tap in port.heard]:
        expected = port.heard[tap].double().numpy()
        assert is_same(taps[tap], expected.reshape(taps[tap].shape)), tap


def test_layouts_of_a_tap_are_its_axes_in_any_order_and_merged() -> None:
    value = np.arange(2 * 3 * 5 * 7.0).reshape(2, 3, 5, 7)
    merged = value.transpose(0, 2, 1, 3).reshape(10, 21)
    arranged = [layout.to_ours(merged) for layout in layouts(value.shape, merged.shape, 3)]
    assert any(np.array_equal(each, value) for each in arranged)
    assert layouts((4, 6), (8, 3), 3) == ()


LINES = {
    "from-0": "return where - where[:, :1]",
    "one-too-high": "return (where + int(where[0, 0] > 0))",
    "queries-from-0": "where = where - where[:, :1] if role",
    "keys-unrotated": "return torch.cat([old_key, key], 2), value",
}


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
    request = step_request("across a threshold", probe, (6, 1, 1))
    found = with_line_of_step(report, None, [request], {id(probe.parameters): port}).faults[0]
    assert found.source is not None and LINES["from-0"] in found.source["code"]


Order = tuple[int, ...]


def in_order(x: torch.Tensor, order: Order) -> torch.Tensor:
    kept = x.shape[-1] - len(order)
    return torch.cat([x[..., :kept], x[..., kept:][..., list(order)]], -1) if order else x


def test_the_line_of_a_norm_that_comes_too_late_is_its_call() -> None:
    """The line with the norm's formula is right, because the layers' right norms run the same line."""
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
