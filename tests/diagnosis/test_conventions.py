"""Test that the checker accepts equivalent forms of activations, and any output of a query without visible keys. A form
is equivalent if one linear map turns the reference's activation into the port's, inside a sublayer or at a norm."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import WalkState
from transparity_conformance.checking.check import check
from transparity_conformance.diagnosis.locate import is_equivalent
from transparity_conformance.diagnosis.thresholds import EQUIVALENT_ULPS
from transparity_conformance.oracle.budgets import epsilon
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import probes
from transparity_conformance.oracle.undetermined import right_mask, undetermined_positions
from transparity_conformance.report.check.findings import worst
from transparity_conformance.report.report import Report
from transparity_numpy.arithmetic.functional import softmax
from transparity_numpy.transformer import transformer

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


Change = Callable[[TransformerConfig, str, np.ndarray], np.ndarray]
"""Maps the configuration, a tap and its value to a new value."""


def port(change: Change) -> Callable[..., Any]:
    """Return the `build` of a port that computes like the reference in float32, with changed activations."""

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Mapping[str, np.ndarray]]:
        def forward(**tokens: Any) -> Mapping[str, np.ndarray]:
            taps = Arrays()

            def tap(name: str, value: np.ndarray) -> np.ndarray:
                taps[name] = change(config, name, value).astype(np.float32)
                return taps[name]

            transformer(config, parameters, tap=tap, **tokens)
            return taps

        return forward

    return build


Weigh = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""Maps the scores, the mask and the correct weights to the port's weights."""


def weighing(weigh: Weigh, only: str = "attention.weights") -> Callable[..., Any]:
    """Return the reference in float32, with `weigh` applied to every tap whose name ends in `only`."""

    def build(config: TransformerConfig, parameters: Arrays) -> Callable[..., Mapping[str, np.ndarray]]:
        def forward(**tokens: Any) -> Mapping[str, np.ndarray]:
            state, scores = WalkState(config, parameters, tokens), Arrays()

            def change(config: TransformerConfig, name: str, value: np.ndarray) -> np.ndarray:
                scores["last"] = value if name.endswith("scores") else scores.get("last", value)
                mask = right_mask(state, name) if name.endswith(only) else None
                return value if mask is None else weigh(scores["last"], np.broadcast_to(mask, value.shape), value)

            return port(change)(config, parameters)(**tokens)

        return forward

    return build


CONVENTIONS: dict[str, Weigh] = {
    "zeros": lambda scores, mask, weights: np.where(mask.any(-1, keepdims=True), weights, 0),
    "a large negative number": lambda scores, mask, weights: softmax(
        scores.astype(np.float64) + np.where(mask, 0.0, -1e9)
    ),
    "scores": lambda scores, mask, weights: np.where(mask.any(-1, keepdims=True), weights, softmax(scores)),
}
"""The weights of rows without a visible key, by convention."""


def claim(report: Report) -> list[str]:
    return [item.verdict for item in report.claims if item.id == "wholly_hidden"]


@pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])
@pytest.mark.parametrize("name", CONVENTIONS)
def test_another_convention_for_rows_that_see_nothing_agrees(name: str, logits_only: bool) -> None:
    report = check(weighing(CONVENTIONS[name]), "pre-norm", logits_only=logits_only)
    assert report.verdict == "agrees" and claim(report) == ["agrees"], report.notes
    (note,) = (note for note in report.notes if note.startswith("wholly_hidden"))
    assert name != "zeros" or "gives weight 0 to every key" in note
    assert worst(report)[0] <= 1


@pytest.mark.parametrize("logits_only", [False, True], ids=["taps", "logits"])
def test_a_lost_mask_is_not_excused_by_it(logits_only: bool) -> None:
    for only in ("encoder.layers.1.self_attention.weights", "decoder.layers.0.cross_attention.weights"):
        report = check(
            weighing(lambda scores, mask, weights: softmax(scores), only), "pre-norm", logits_only=logits_only
        )
        assert report.verdict == "diverges", only
        assert report.faults[0].causes[0].mistake == "padding-ignored"


def test_positions_of_real_tokens_depend_on_it_only_if_they_see_nothing() -> None:
    probe = probes("pre-norm")["mixed"]
    free = np.any(undetermined_positions(probe)["logits"], axis=-1)
    tokens, sees_source = probe.inputs["target"] != 0, np.any(probe.inputs["source"] != 0, axis=1)
    assert not free[sees_source][tokens[sees_source]].any()
    assert free[~sees_source].all()


@pytest.mark.parametrize(
    ("weigh", "preset"),
    [
        (CONVENTIONS["zeros"], "walkthrough"),  # masked keys have a weight in this document
        (lambda scores, mask, weights: np.where(mask.any(-1, keepdims=True), weights, np.nan), "pre-norm"),
    ],
    ids=["walkthrough", "nan"],
)
def test_where_no_other_convention_is_possible_none_is_accepted(weigh: Weigh, preset: str) -> None:
    report = check(weighing(weigh), preset, logits_only=True, budget=0)
    assert report.verdict == "diverges" and not claim(report)
