"""If a port has another configuration, the report names the fields that explain the difference."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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
from transparity_numpy.transformer import transformer
from transparity_pytorch.port import build as build_pytorch


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
