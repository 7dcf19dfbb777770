"""The checker also records ports that return some taps, and ports whose faults appear only at other sizes."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from tests.golden.ports import GPT2, Gpt2, ReluOfOneRow, Showing, WrongFromSixtyFive

from transparity_conformance import check
from transparity_conformance.oracle import probes
from transparity_conformance.report.report import Report


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
    assert "decoder.layers.0.self_attention.output" in by_place, "the tap that the port returns must be compared"


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


class EveryThirdFeature(Gpt2):
    def feed_forward(self, at: str, x: torch.Tensor) -> torch.Tensor:
        h = F.gelu(self.linear(f"{at}.up", x))
        return self.linear(f"{at}.down", torch.where(torch.arange(h.shape[-1]) % 3 == 1, 1.1 * h, h))


def test_the_note_on_an_unexplained_line_has_the_pattern_of_its_changes() -> None:
    report = check(EveryThirdFeature, config=GPT2, budget=10.0)
    assert any("changes only every 3rd feature from 1" in note for note in report.notes)
