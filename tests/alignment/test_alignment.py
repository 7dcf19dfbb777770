"""Test that the checker finds taps by value among a port's operations, with and without faults, and reports lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.helpers import LIKE_GPT2, tiny
from tests.listening.common import is_same

from meta.independent.model import Model
from meta.pool.port import CASES
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.identify.alignment.heard import aligned_probe
from transparity_conformance.identify.alignment.plan import Plan, plan_of, read
from transparity_conformance.matching.recorded import layouts
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.running.process.running import run_listening

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


def test_layouts_of_a_tap_are_its_axes_in_any_order_and_merged() -> None:
    value = np.arange(2 * 3 * 5 * 7.0).reshape(2, 3, 5, 7)
    merged = value.transpose(0, 2, 1, 3).reshape(10, 21)
    arranged = [layout.to_ours(merged) for layout in layouts(value.shape, merged.shape, 3)]
    assert any(np.array_equal(each, value) for each in arranged)
    assert layouts((4, 6), (8, 3), 3) == ()
