"""Queries without a visible key have no defined output; the report notes the port's choice next to the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from tests.diagnosis.ports import port

from transparity.config import TransformerConfig
from transparity.presets import preset
from transparity_conformance.catalogue.fault import WalkState
from transparity_conformance.checking.check import check
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probes
from transparity_conformance.oracle.undetermined import right_mask, undetermined_positions
from transparity_conformance.report.report import Report
from transparity_numpy.arithmetic.functional import softmax

Weigh = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Maps the scores, the mask and the correct weights to the port's weights."""


def weighing(weigh: Weigh, only: str = "attention.weights") -> Callable[..., Any]:
    """Return the reference in float32 with `weigh` applied at all taps that end in `only`."""

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Mapping[str, np.ndarray]]:
        def forward(**tokens: Any) -> Mapping[str, np.ndarray]:
            state, scores = WalkState(config, parameters, tokens), Arrays()

            def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
                scores["last"] = value if name.endswith("scores") else scores.get("last", value)
                mask = right_mask(state, name) if name.endswith(only) else None
                return value if mask is None else weigh(scores["last"], np.broadcast_to(mask, value.shape), value)

            return port(change=change)(config, parameters)(**tokens)

        return forward

    return build


def zeros(scores: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.where(mask.any(-1, keepdims=True), weights, 0)


def additive(scores: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return softmax(scores.astype(np.float64) + np.where(mask, 0.0, -1e9))


def by_scores_where_hidden(scores: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.where(mask.any(-1, keepdims=True), weights, softmax(scores))


def nan(scores: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.where(mask.any(-1, keepdims=True), weights, np.nan)


def unmasked(scores: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return softmax(scores)


def claim(report: Report) -> list[str]:
    return [item.verdict for item in report.claims if item.id == "wholly_hidden"]


@pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])
@pytest.mark.parametrize("convention", [zeros, additive, by_scores_where_hidden])
def test_another_convention_for_rows_that_see_nothing_agrees(convention: Weigh, logits_only: bool) -> None:
    report = check(weighing(convention), "pre-norm", logits_only=logits_only)
    assert report.verdict == "agrees" and claim(report) == ["agrees"], report.notes
    (note,) = (note for note in report.notes if note.startswith("wholly_hidden"))
    assert convention is not zeros or "weights of zero" in note


def test_steps_with_a_cache_may_follow_another_convention_too() -> None:
    built = weighing(zeros)

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Any]:
        model = built(config, parameters)

        def forward(**tokens: Any) -> Any:
            return model(**tokens)["logits"]

        def step(tokens: np.ndarray, cache: Any, source: np.ndarray | None = None) -> Any:
            source, seen = (source, tokens) if cache is None else (cache[0], np.concatenate([cache[1], tokens], 1))
            return forward(source=source, target=seen)[:, -tokens.shape[1] :], (source, seen)

        vars(forward)["step"] = step
        return forward

    report = check(build, "pre-norm")
    assert report.verdict == "agrees" and claim(report) == ["agrees"], report.faults
    assert [item.verdict for item in report.claims if item.id == "step"] == ["agrees"]


def test_a_port_with_our_convention_has_no_such_claim() -> None:
    report = check(weighing(lambda scores, mask, weights: weights), "pre-norm")
    assert report.verdict == "agrees" and not claim(report)


@pytest.mark.long
def test_not_a_number_is_no_convention() -> None:
    report = check(weighing(nan), "pre-norm", logits_only=True)
    assert report.verdict == "diverges"


@pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])
def test_a_lost_mask_is_not_excused_by_it(logits_only: bool) -> None:
    for only in ("encoder.layers.1.self_attention.weights", "decoder.layers.0.cross_attention.weights"):
        report = check(weighing(unmasked, only), "pre-norm", logits_only=logits_only)
        assert report.verdict == "diverges", only
        assert report.faults[0].causes[0].mistake == "padding-ignored"


def test_where_masked_keys_weigh_something_the_document_decides() -> None:
    assert not preset("walkthrough").mask_is_exact
    assert check(weighing(zeros), "walkthrough", budget=0).verdict == "diverges"


@pytest.mark.long
def test_a_fault_is_named_beside_another_convention() -> None:
    def both(scores: np.ndarray, mask: np.ndarray, weights: np.ndarray) -> np.ndarray:
        hidden = np.where(mask, 2 * scores, -1e9)
        return np.where(mask.any(-1, keepdims=True), softmax(hidden), 0)

    report = check(weighing(both, "decoder.layers.1.self_attention.weights"), "pre-norm", logits_only=True)
    assert report.faults[0].causes[0].mistake == "attention-scale"


def test_positions_of_real_tokens_depend_on_it_only_if_they_see_nothing() -> None:
    probe = probes("pre-norm")["mixed"]
    free = np.any(undetermined_positions(probe)["logits"], axis=-1)
    tokens, sees_source = probe.inputs["target"] != 0, np.any(probe.inputs["source"] != 0, axis=1)
    assert not free[sees_source][tokens[sees_source]].any()
    assert free[~sees_source].all()
