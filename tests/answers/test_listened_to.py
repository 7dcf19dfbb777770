"""Ports that show some taps, large models, and faults that show at other sizes alone are listened to as well."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.alignment.test_alignment import GPT2, Gpt2, ScaledByTheWidth

from transparity_conformance import check
from transparity_conformance.identify.alignment import heard
from transparity_conformance.oracle import probes
from transparity_conformance.report.report import Report


class Showing(ScaledByTheWidth):
    """Shows two taps of each layer, one of them twice as large as it is."""

    def attend(self, at: str, x: torch.Tensor) -> torch.Tensor:
        self.shown |= {f"{at}_norm": x, f"{at}.output": 2 * super().attend(at, x)}
        return self.shown[f"{at}.output"] / 2

    def __call__(self, tokens: Any) -> Any:
        self.shown: dict[str, torch.Tensor] = {}
        return {"logits": super().__call__(tokens), **self.shown}


class ReluOfOneRow(Gpt2):
    def feed_forward(self, at: str, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(f"{at}.up", x)
        h = F.gelu(h) if len(x) > 1 else F.relu(h)
        return self.linear(f"{at}.down", h)


class WrongFromSixtyFive(Gpt2):
    def scale(self, width: int) -> float:
        return float(width**-0.5) if self.is_long else super().scale(width)

    def attend(self, at: str, x: torch.Tensor) -> torch.Tensor:
        self.is_long = x.shape[1] > 64
        return super().attend(at, x)


def causes(report: Report) -> list[str]:
    return [cause.mistake for fault in report.faults[:1] for cause in fault.causes]


def line(report: Report) -> str:
    assert report.faults[0].source is not None, report.notes
    return str(report.faults[0].source["code"])


@pytest.mark.long
def test_the_taps_that_a_port_shows_are_its_own_and_the_rest_is_found() -> None:
    report = check(Showing, config=GPT2)
    assert {item.tap for item in report.measured} == set(probes.probes_of(GPT2, "gpt2")["mixed"].oracle.expected)
    by_place = {fault.where: fault for fault in report.faults}
    scores = by_place["decoder.layers.0.self_attention.scores"]
    assert [cause.mistake for cause in scores.causes] == ["attention-scale"]
    assert scores.source is not None and scores.source["code"].startswith("att = ")
    assert "decoder.layers.0.self_attention.output" in by_place, "which is found by value, but shown otherwise"


def test_a_port_that_shows_every_tap_is_not_listened_to() -> None:
    from transparity_numpy.port import build

    def wrong(config: Any, parameters: dict[str, np.ndarray]) -> Any:
        forward = build(config, parameters)
        return lambda **tokens: {name: value * 1.5 for name, value in forward(**tokens).items()}

    assert not any("listened" in note for note in check(wrong, "notes-lm", budget=0).notes)


def test_a_large_model_is_listened_to_on_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "LARGE", 0)
    report = check(ScaledByTheWidth, config=GPT2)
    assert (causes(report), line(report)[:6]) == (["attention-scale"], "att = ")
    taps = {item.tap for item in report.measured if item.probe == "aligned"}
    assert len(taps) > 20 and {item.tap for item in report.measured if item.probe == "mixed"} == {"logits"}


@pytest.mark.long
def test_a_model_that_is_too_large_is_told_why_it_is_not_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = check(ScaledByTheWidth, config=GPT2, budget=0)
    assert any("not listened to: finding 27 taps takes about" in note for note in slow.notes)
    monkeypatch.setattr(heard, "available_memory", lambda: 1000)
    large = check(ScaledByTheWidth, config=GPT2, budget=1)
    assert any("of memory, and 1 kB are free; with taps of its own" in note for note in large.notes)
    assert (slow.verdict, large.verdict) == ("diverges", "diverges")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("build", "cause", "begins", "boundary"),
    [
        (ReluOfOneRow, "activation", "h = F.gelu(h)", "batch 1"),
        (WrongFromSixtyFive, "attention-scale", "att = (q", "right up to length 64, wrong from length 65 on"),
    ],
)
def test_a_fault_that_shows_at_other_sizes_alone_has_its_cause_and_line(
    build: type[Gpt2], cause: str, begins: str, boundary: str
) -> None:
    told: list[Report] = []
    report = check(build, config=dataclasses.replace(GPT2, max_length=300), located=told.append)
    assert (causes(report), line(report)[: len(begins)]) == ([cause], begins)
    assert any(boundary in note for note in report.notes)
    assert told[0].faults[0].where == "logits" and told[-1].faults[0].source is not None
