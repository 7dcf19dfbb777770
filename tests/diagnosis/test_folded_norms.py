"""A norm whose gain is folded into the weights behind it is another form; one without gain is wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.transformer import transformer

READERS = {"self_attention_norm": ("query", "key", "value"), "feed_forward_norm": ("gate", "up")}


def folded(parameters: Arrays, *, skipped: str = "") -> Arrays:
    """Every norm's gain in the weights that read it, except those of the parameter `skipped`."""
    changed = dict(parameters)
    for name in [name for name in parameters if name.endswith("_norm.weight")]:
        scope, norm = name.removesuffix(".weight").rpartition(".")[::2]
        readers = [f"{scope}.{norm.removesuffix('_norm')}.{role}.weight" for role in READERS.get(norm, ())]
        readers = ["head.weight"] if norm == "final_norm" else readers
        for reader in readers:
            if reader != skipped:
                changed[reader] = (parameters[reader].astype(np.float64) * parameters[name]).astype(np.float32)
        changed[name] = np.ones_like(parameters[name])
    return changed


def port(skipped: str = "") -> Callable[..., Any]:
    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Mapping[str, np.ndarray]]:
        def forward(**tokens: Any) -> Mapping[str, np.ndarray]:
            taps = Arrays()

            def tap(name: str, value: np.ndarray) -> np.ndarray:
                taps[name] = value
                return value

            transformer(config, folded(parameters, skipped=skipped), tap=tap, **tokens)
            return taps

        return forward

    return build


CONFIG = dataclasses.replace(CASES["llama"], tied_head=False)


def test_gains_folded_into_the_weights_agree() -> None:
    report = check(port(), config=CONFIG)
    assert report.verdict == "agrees", [(fault.where, fault.causes) for fault in report.faults]
    assert any("self_attention_norm is held in another form" in note for note in report.notes)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("skipped", ["decoder.layers.1.feed_forward.up.weight", "head.weight"])
def test_a_gain_that_is_folded_nowhere_is_missing(skipped: str) -> None:
    assert check(port(skipped), config=CONFIG, budget=0).verdict == "diverges"
