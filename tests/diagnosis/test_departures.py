"""A port of another configuration is told which fields would explain it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.ports.check import check
from transparity_numpy.transformer import transformer


def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., np.ndarray]:
    other = dataclasses.replace(config, norm="rms", positions="rotary", activation="silu")
    return lambda **tokens: transformer(other, parameters, **tokens)


def test_a_port_of_another_configuration_is_told_which_fields_differ() -> None:
    report = check(build, "notes-lm", logits_only=True, budget=1)
    (note,) = (note for note in report.notes if note.startswith("nothing in the catalogue"))
    assert report.verdict == "diverges"
    assert "this may be no notes-lm" in note and "`transparity fit`" in note
    assert all(field in note for field in ("norm rms", "positions rotary", "activation silu")), note
