"""Scores in another form are no fault of their own where something else of the same attention is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity_conformance.checking.check import check
from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.transformer import transformer

Change = Callable[[TransformerConfig, str, np.ndarray], np.ndarray]


def unscaled(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
    """Scores as a port shows them that scales what goes into its softmax."""
    return value * config.head_dim**0.5 if name.endswith(".scores") else value


def port(change: Change) -> Callable[..., Any]:
    """The reference with `change` in its activations, which shows its scores before they are scaled."""

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Mapping[str, np.ndarray]]:
        def forward(**tokens: Any) -> Mapping[str, np.ndarray]:
            taps = Arrays()

            def tap(name: str, value: np.ndarray) -> np.ndarray:
                value = change(config, name, value)
                taps[name] = unscaled(config, name, value)
                return value

            transformer(config, parameters, tap=tap, **tokens)
            return taps

        return forward

    return build


def right(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
    return value


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


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (heads_merged_in_turn, {"context"}),
        (features_in_turn, {"query", "key"}),
        (weights_squared, {"scores", "weights"}),  # a wrong scale, in the scores or behind them
    ],
)
def test_only_what_is_wrong_is_reported(change: Change, wrong: set[str]) -> None:
    report = check(port(change), config=example_config("llama"), budget=5)
    assert report.verdict == "diverges"
    assert {fault.where.rpartition(".")[2] for fault in report.faults} <= wrong
    assert {fault.where.split(".")[2] for fault in report.faults} == {"0", "1"}


def test_scores_that_are_scaled_later_agree() -> None:
    report = check(port(right), config=example_config("llama"))
    assert report.verdict == "agrees"
    assert "decoder.layers.0.self_attention.scores is held in another form" in " ".join(report.notes)
