"""Only wrong values are named, equivalent causes are all listed, and another configuration is named by its fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.diagnosis.ports import port

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import tap_shapes
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.checking.check import check
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.search.fields import departures
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.check.findings import sentence
from transparity_conformance.report.report import Report
from transparity_numpy.transformer import transformer
from transparity_pytorch.port import build as build_pytorch


def named(report: Report) -> set[str]:
    return {cause.mistake for fault in report.faults for cause in fault.causes}


def test_a_scale_in_front_of_a_norm_is_tied_with_eps() -> None:
    def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
        return value * np.float32(0.7) if name == "decoder.layers.1.output" else value

    report = check(port(change=change), "notes-lm", logits_only=True)
    (fault,) = report.faults
    assert {fault.causes[0].mistake, *fault.indistinguishable} >= {"norm-eps", "norm-input-scale"}


def test_what_remains_is_compared_with_rounding() -> None:
    def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
        return value * np.float32(1 + 2e-5) if name.endswith("attention.scores") else value

    report = check(port(change=change), "notes-lm")
    assert named(report) == {"attention-scale"} and "something else remains" not in sentence(report)


@pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])
def test_a_number_that_one_probe_refutes_is_not_certain(logits_only: bool) -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        ratio = (3 * config.head_dim) ** -0.5 / config.score_scale

        def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
            return value * np.float32(ratio) if name.endswith("attention.scores") else value

        return port(change=change)(config, parameters)

    report = check(build, "notes-attention", logits_only=logits_only)
    assert named(report) == {"attention-scale"} and "√embed_dim" not in report.faults[0].causes[0].says
    assert len(report.faults) == len({fault.where for fault in report.faults}), sentence(report)


def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., np.ndarray]:
    other = dataclasses.replace(config, norm="rms", positions="rotary", activation="silu")
    return lambda **tokens: transformer(other, parameters, **tokens)


def test_a_port_of_another_configuration_is_told_which_fields_differ() -> None:
    report = check(build, "notes-lm", logits_only=True, budget=8)
    (note,) = (note for note in report.notes if note.startswith("no known fault explains the logits"))
    assert report.verdict == "diverges"
    assert "the model may not be notes-lm" in note and "`transparity fit`" in note
    assert all(field in note for field in ("norm rms", "positions rotary", "activation silu")), note


def showing(**fields: Any) -> Callable[..., Any]:
    """Return a port with other fields that returns only the taps of the original configuration."""

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        other = dataclasses.replace(config, **fields)
        forward = build_pytorch(other, {name: parameters[name] for name in parameter_shapes(other)})

        def shown(tokens: np.ndarray) -> dict[str, np.ndarray]:
            known, taps = tap_shapes(config, *tokens.shape[:1], tokens=tokens.shape[1]), forward(tokens=tokens)
            return {name: value for name, value in taps.items() if name in known}

        return shown

    return build


@pytest.mark.long
def test_a_port_that_shows_its_activations_is_told_that_it_is_another_model() -> None:
    report = check(showing(norm="rms", positions="rotary", activation="silu"), "notes-lm", budget=120)
    assert sentence(report).startswith("This is not notes-lm: it has ")
    assert "norm rms (not layer)" in sentence(report) and "`transparity fit`" in sentence(report)
    ports = {name: pair["port"] for name, pair in report.as_dict()["other_fields"].items()}
    assert {name: ports[name] for name in ("norm", "positions", "activation")} == {
        "norm": "rms",
        "positions": "rotary",
        "activation": "silu",
    }


def test_a_single_fault_is_no_other_model() -> None:
    report = check(showing(norm="rms"), "notes-lm", budget=20)
    assert report.verdict == "diverges" and not report.other_fields


def test_two_faults_that_are_no_fields_are_no_other_model() -> None:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        wrong = [f"decoder.layers.{i}.{part}.weight" for i, part in ((0, "feed_forward.up"), (1, "feed_forward.down"))]
        return showing()(config, parameters | {name: 1.5 * parameters[name] for name in wrong})

    report = check(build, "notes-lm", budget=5)
    assert report.verdict == "diverges" and not report.other_fields


def test_without_time_no_field_is_tried() -> None:
    tried = list[Hypothesis]()

    def left(hypothesis: Hypothesis) -> float:
        tried.append(hypothesis)
        return 1.0

    assert departures(CASES["llama"], left, Clock(0)) == ({}, 1.0)
    assert len(tried) == 1
