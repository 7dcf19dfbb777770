"""Activations inside a sublayer, and norms, may have an equivalent form if one linear map relates the two.

A wrong value is never accepted as such a form, and no right value is reported next to another fault.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.diagnosis.ports import Carry, Change, port

from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.diagnosis.locate import is_equivalent
from transparity_conformance.diagnosis.thresholds import EQUIVALENT_ULPS
from transparity_conformance.oracle.budgets import epsilon
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import Arrays

TAP = "decoder.layers.0.self_attention.key"
TOLERANCE = EQUIVALENT_ULPS * epsilon("float64")


def test_only_one_map_for_every_position_is_equivalent() -> None:
    random = np.random.default_rng(0)
    ours = random.normal(size=(2, 1, 9, 4))
    theirs = ours @ random.normal(size=(4, 4)) + random.normal(size=4)
    assert is_equivalent(TAP, [(theirs, ours)], TOLERANCE)
    theirs[1, 0, 3, 2] += 1e-3
    assert not is_equivalent(TAP, [(theirs, ours)], TOLERANCE)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("wild", [np.inf, np.nan])
def test_nothing_that_is_not_finite_is_equivalent(side: int, wild: float) -> None:
    pair = np.random.default_rng(0).normal(size=(2, 2, 1, 9, 4))
    assert is_equivalent(TAP, [(pair[0], pair[0])], TOLERANCE)
    pair[side, 0, 0, 0, 0] = wild
    assert not is_equivalent(TAP, [(pair[0], pair[1])], TOLERANCE)


def test_hidden_units_that_are_all_zero_are_not_equivalent() -> None:
    ours = np.random.default_rng(0).normal(size=(2, 9, 4))
    assert is_equivalent("encoder.layers.0.feed_forward.hidden", [(2 * ours[..., ::-1], ours)], TOLERANCE)
    assert not is_equivalent("encoder.layers.0.feed_forward.hidden", [(0 * ours, ours)], TOLERANCE)


def unscaled(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
    """Return unscaled scores, like a port that scales scores just before the softmax."""
    return value * config.head_dim**0.5 if name.endswith(".scores") else value


def heads_merged_in_turn(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
    if not name.endswith(".context"):
        return value
    order = np.arange(config.num_heads).reshape(2, -1).T.ravel()
    return value.reshape(*value.shape[:2], config.num_heads, -1)[:, :, order].reshape(value.shape)


def features_in_turn(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
    order = np.arange(config.head_dim).reshape(2, -1).T.ravel()
    return value[..., order] if name.endswith((".query", ".key")) else value


def weights_squared(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
    return value**2 / (value**2).sum(-1, keepdims=True) if name.endswith(".weights") else value


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (heads_merged_in_turn, {"context"}),
        (features_in_turn, {"query", "key"}),
        (weights_squared, {"scores", "weights"}),  # the scale is wrong, in the scores or after them
    ],
)
def test_only_what_is_wrong_is_reported(change: Change, wrong: set[str]) -> None:
    report = check(port(change=change, shown=unscaled), config=example_config("llama"), budget=5)
    assert report.verdict == "diverges"
    assert {fault.where.rpartition(".")[2] for fault in report.faults} <= wrong
    assert {fault.where.split(".")[2] for fault in report.faults} == {"0", "1"}


def test_scores_that_are_scaled_later_agree() -> None:
    report = check(port(shown=unscaled), config=example_config("llama"))
    assert report.verdict == "agrees"
    assert "decoder.layers.0.self_attention.scores has an equivalent form" in " ".join(report.notes)


READERS = {"self_attention_norm": ("query", "key", "value"), "feed_forward_norm": ("gate", "up")}
CONFIG = dataclasses.replace(CASES["llama"], tied_head=False)


def folded(skipped: str = "") -> Carry:
    """Return a change that multiplies norm gains into the next weights, except for the gain `skipped`."""

    def carry(config: TransformerConfig, parameters: Arrays) -> Arrays:
        changed = Arrays()
        for name in [name for name in parameters if name.endswith("_norm.weight")]:
            scope, norm = name.removesuffix(".weight").rpartition(".")[::2]
            readers = [f"{scope}.{norm.removesuffix('_norm')}.{role}.weight" for role in READERS.get(norm, ())]
            for reader in ["head.weight"] if norm == "final_norm" else readers:
                if reader != skipped:
                    changed[reader] = (parameters[reader].astype(np.float64) * parameters[name]).astype(np.float32)
            changed[name] = np.ones_like(parameters[name])
        return changed

    return carry


def test_gains_folded_into_the_weights_agree() -> None:
    report = check(port(folded()), config=CONFIG)
    assert report.verdict == "agrees", [(fault.where, fault.causes) for fault in report.faults]
    assert any("self_attention_norm has an equivalent form" in note for note in report.notes)


@pytest.mark.parametrize("skipped", ["decoder.layers.1.feed_forward.up.weight", "head.weight"])
def test_a_gain_that_is_folded_nowhere_is_missing(skipped: str) -> None:
    assert check(port(folded(skipped)), config=CONFIG, budget=0).verdict == "diverges"
