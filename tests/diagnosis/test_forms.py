"""Activations inside a sublayer may have an equivalent form, and only if one map leads there."""

from __future__ import annotations

import numpy as np
import pytest

from transparity_conformance.diagnosis.equivalence import is_equivalent
from transparity_conformance.diagnosis.thresholds import EQUIVALENT_ULPS
from transparity_conformance.oracle.budgets import epsilon

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
