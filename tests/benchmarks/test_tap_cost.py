"""Taps without a listener take a negligible share of a forward pass."""

from __future__ import annotations

import pytest
from benchmarks.tap_cost import counted, fast_path, tap_cost
from benchmarks.workloads import WORKLOADS

from transparity.taps import identity, scoped, tap_shapes
from transparity_conformance.oracle.backends import installed

TINY, SMALL = WORKLOADS["tiny-encoder-decoder"], WORKLOADS["length-128"]


@pytest.mark.parametrize("name", installed())
def test_taps_without_a_listener_take_less_than_a_thousandth(name: str) -> None:
    assert tap_cost(fast_path(name, SMALL)).share < 1e-3


def test_every_tap_is_counted() -> None:
    """Except for those inside attention, which is fused without a listener."""
    shapes = tap_shapes(TINY.config, TINY.batch, **TINY.lengths)
    inside = [tap for tap in shapes if tap.endswith((".scores", ".weights", ".context"))]
    assert counted(fast_path("numpy", TINY))["identity"] == len(shapes) - len(inside)


def test_calls_are_counted_and_others_are_not() -> None:
    def run() -> None:
        scoped(identity, "layers.0")("output", 1)
        sorted([2, 1])

    assert counted(run) == {"identity": 1, "scoped": 1}


def test_compiled_forward_passes_have_no_taps() -> None:
    if "flax" not in installed():
        pytest.skip("flax is not installed")
    assert counted(fast_path("flax", TINY)) == {"identity": 0, "scoped": 0}
