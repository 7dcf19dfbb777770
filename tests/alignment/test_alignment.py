"""Test that the checker finds taps by value among a port's operations, with and without faults, and reports lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.helpers import LIKE_GPT2, tiny
from tests.listening.common import is_same

from meta.audits.measure import FOLDER
from meta.independent.model import Model
from meta.pool.bug import edited_copy
from meta.pool.port import CASES, port_with, probes_called
from transparity_conformance import check
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import Plan, plan_of, read
from transparity_conformance.matching.recorded import layouts
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.running.loading import load_port
from transparity_conformance.running.process.running import built, run_listening

SIZES = {"target_vocab_size": 31, "max_length": 16, "embed_dim": 24, "num_heads": 3, "feed_forward_dim": 40}
GPT2 = tiny(**SIZES, **LIKE_GPT2, num_decoder_layers=2, activation="gelu")


class Gpt2:
    """A hand-written GPT-2 with separate query, key and value layers, because the reference has separate parameters."""

    def __init__(self, config: Any, parameters: dict[str, np.ndarray]) -> None:
        self.c = config
        self.p = {name: torch.tensor(value) for name, value in parameters.items()}

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.p[f"{name}.weight"], self.p.get(f"{name}.bias"))

    def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.p[f"{name}.bias"], self.c.norm_eps)

    def scale(self, width: int) -> float:
        return float((width // self.c.num_heads) ** -0.5)

    def attend(self, at: str, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.c.num_heads, -1)
        q, k, v = (self.linear(f"{at}.{name}", x).view(heads).transpose(1, 2) for name in ("query", "key", "value"))
        att = (q @ k.transpose(-2, -1)) * self.scale(width)
        att = att.masked_fill(torch.ones(length, length).tril() == 0, float("-inf"))
        y = (F.softmax(att, dim=-1) @ v).transpose(1, 2).reshape(batch, length, width)
        return self.linear(f"{at}.output", y)

    @torch.no_grad()
    def __call__(self, tokens: Any) -> torch.Tensor:
        ids, p = torch.as_tensor(tokens), self.p
        x = p["decoder.token_embedding.weight"][ids] + p["decoder.position_embedding.weight"][: ids.shape[1]]
        for i in range(self.c.num_decoder_layers):
            at = f"decoder.layers.{i}"
            x = x + self.attend(f"{at}.self_attention", self.norm(f"{at}.self_attention_norm", x))
            x = x + self.feed_forward(f"{at}.feed_forward", self.norm(f"{at}.feed_forward_norm", x))
        return F.linear(self.norm("decoder.final_norm", x), p["decoder.token_embedding.weight"])

    def feed_forward(self, at: str, x: torch.Tensor) -> torch.Tensor:
        return self.linear(f"{at}.down", F.gelu(self.linear(f"{at}.up", x)))


class ScaledByTheWidth(Gpt2):
    def scale(self, width: int) -> float:
        return float(width**-0.5)


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


def test_a_tap_is_read_behind_a_mask_that_changed_nothing_in_the_row_without_padding() -> None:
    """Use Mamba-2: in a row without padding, the values before and after its mask are equal."""
    probes, silent = probes_called("mamba2"), port_with(taps=False)
    padded = next(each for each in probes.values() if not each.inputs["attention_mask"].all())
    plan, _ = heard(built(silent, row := aligned_probe(padded)), row)
    taps, operations = run_listening(built(silent, padded), padded)
    found, _ = read(plan, padded, operations, taps["logits"])
    shown = port_with()(padded.config, padded.parameters)(**padded.inputs)
    own = {tap: value.numpy() for tap, value in shown.items()}
    convolved = [tap for tap in own if tap.endswith("_convolved")]
    assert len(convolved) == 3 * padded.config.num_decoder_layers
    assert [tap for tap in convolved if not is_same(found[tap], own[tap])] == []


def test_a_product_that_is_another_one_on_one_row_is_read_on_several() -> None:
    """Drop a bias, so that the product is the tap's value. PyTorch runs another product for a single row."""
    probes, build = probes_called("clip-vision"), port_with("bias-dropped-down", taps=False)
    plan, _ = heard(built(build, row := aligned_probe(probes["mixed"])), row)
    taps, operations = run_listening(built(build, probes["tiny"]), probes["tiny"])
    found, _ = read(plan, probes["tiny"], operations, taps["logits"])
    assert found.keys() == probes["tiny"].oracle.expected.keys()


FIVE = (
    *("norm-eps-placement-rms", "rotary-base-10000", "rotary-direction-both"),
    *("head-grouping-tiled", "gate-swapped"),
)
ONE_SIGN = ("rotary-direction-both", "right-scaled-query")
"""A wrong sign in the rotation, before the queries are scaled, which keeps their shape."""


@pytest.mark.parametrize("bugs", [FIVE, ONE_SIGN], ids=["five", "one sign"])
def test_taps_are_found_between_faults_that_follow_each_other(bugs: tuple[str, ...]) -> None:
    """Both ports have wrong rotations before the scores. One also has wrong head groups, norms and gates."""
    probe = aligned_probe(probes_of(CASES["llama"], "llama")["tiny"])
    port: Any = port_with(*bugs, taps=False)(probe.config, probe.parameters)
    plan, taps = heard(port, probe)
    assert plan.matches.keys() == probe.oracle.expected.keys()
    for tap in [tap for tap in taps if tap in port.heard]:
        expected = port.heard[tap].double().numpy()
        assert is_same(taps[tap], expected.reshape(taps[tap].shape)), tap


def test_a_numpy_port_without_taps_is_named_as_one_with_taps(tmp_path: Path) -> None:
    """Use SiLU in a GPT-2 whose activation should be GELU."""
    right = "0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))"
    port = edited_copy(FOLDER / "gpt2_numpy.py", tmp_path, right, "x / (1 + np.exp(-x))")
    report = check(load_port(f"{port}:load"), family="gpt2", audit=False)
    assert report.faults[0].causes[0].mistake == "activation"
    assert report.faults[0].source is not None, report.notes
    assert report.faults[0].where != "logits"


def test_layouts_of_a_tap_are_its_axes_in_any_order_and_merged() -> None:
    value = np.arange(2 * 3 * 5 * 7.0).reshape(2, 3, 5, 7)
    merged = value.transpose(0, 2, 1, 3).reshape(10, 21)
    arranged = [layout.to_ours(merged) for layout in layouts(value.shape, merged.shape, 3)]
    assert any(np.array_equal(each, value) for each in arranged)
    assert layouts((4, 6), (8, 3), 3) == ()
