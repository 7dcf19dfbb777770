"""A different choice between nearly tied experts is no fault, but a wrong choice is one."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from transparity.taps import recording
from transparity_conformance.diagnosis.judge import judge
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.undetermined import tied_positions
from transparity_conformance.report.report import Report
from transparity_numpy import experts
from transparity_numpy.transformer import transformer

ROUTER = "decoder.layers.1.feed_forward.router.weight"


@functools.cache
def probe(*, tied: bool = True, case: str = "mixtral") -> Probe:
    """Return a probe whose last layer has two experts with almost the same scores for every token."""
    config = CASES[case]
    parameters = probe_parameters(config)
    if tied:
        router = parameters[ROUTER].copy()
        router[3] = np.nextafter(router[1], np.float32(np.inf))
        parameters[ROUTER] = router
    return Probe("near-ties", "mixed", "experts that tie", config, parameters, mixed_inputs(config))


def last_of_equals(x: np.ndarray, count: int) -> np.ndarray:
    """Replace `highest` by a function that prefers the last of almost equal numbers."""
    favoured = x + np.arange(x.shape[-1]) * np.float32(1e-6)
    return highest(favoured.astype(x.dtype), count)


highest = experts.highest


def answers(of: Probe, choice: Callable[..., np.ndarray] = highest) -> Arrays:
    """Return every tap of a float32 port that chooses experts with `choice`."""
    taps: Arrays = {}
    given: dict[str, Any] = dict(of.inputs)
    with patch("transparity_numpy.experts.highest", choice):
        transformer(of.config, of.parameters, **given, tap=recording(taps))
    return taps


def verdict(of: Probe, taps: Arrays, *, logits_only: bool = False, dtype: str = "float32") -> Report:
    return judge("near-ties", {of.name: of}, {of.name: taps}, logits_only=logits_only, dtype=dtype)


def test_few_positions_of_an_ordinary_model_are_near_ties() -> None:
    assert tied_positions(probe(tied=False), "float32") == {}


def test_another_choice_in_a_near_tie_changes_the_logits() -> None:
    """Check the premise of the other tests: the choice has a large effect on the logits."""
    one, other = answers(probe()), answers(probe(), last_of_equals)
    assert np.abs(one["logits"] - other["logits"]).max() > 100 * probe().oracle.budget("logits", "float32")


@pytest.mark.parametrize("logits_only", [False, True])
def test_another_choice_in_a_near_tie_is_no_fault(logits_only: bool) -> None:
    report = verdict(probe(), answers(probe(), last_of_equals), logits_only=logits_only)
    assert not report.faults
    assert any(note.startswith("near_ties: ") for note in report.notes)


def test_the_ports_own_scores_decide() -> None:
    assert verdict(probe(), answers(probe(), last_of_equals)).verdict == "agrees"


def test_with_near_ties_in_most_positions_logits_alone_do_not_agree() -> None:
    tied, total = tied_positions(probe(), "float32")["logits"].any(-1), probe().inputs["tokens"].size
    expected = "inconclusive" if 2 * tied.sum() > total else "agrees"
    assert verdict(probe(), answers(probe(), last_of_equals), logits_only=True).verdict == expected


@pytest.mark.long
def test_without_near_ties_the_same_logits_would_diverge() -> None:
    with patch("transparity_conformance.oracle.undetermined.dependent", lambda *_: {}):
        fresh = dataclasses.replace(probe())
        assert verdict(fresh, answers(fresh, last_of_equals), logits_only=True).verdict == "diverges"


@pytest.mark.parametrize("tied", [True, False])
def test_a_wrong_choice_is_a_fault(tied: bool) -> None:
    def one_fewer(x: np.ndarray, count: int) -> np.ndarray:
        return highest(x, count - 1)

    report = verdict(probe(tied=tied), answers(probe(tied=tied), one_fewer))
    assert report.verdict == "diverges"
    assert {cause.mistake for fault in report.faults for cause in fault.causes} == {"router-count"}


@pytest.mark.parametrize("case", ["mixtral", "deepseek"])
def test_rounding_is_measured_with_the_exact_choice(case: str) -> None:
    """Check that the budget excludes the effect of choices that bfloat16 changes, which is much larger."""
    of = probe(tied=False, case=case)
    assert of.oracle.budget("logits", "bfloat16") < np.abs(of.oracle.expected["logits"]).max() / 2
