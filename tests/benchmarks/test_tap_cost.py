"""Taps without a listener take a negligible share of a forward pass.

The calls that exist only for taps are counted and timed, because the difference of two forward passes would be noise.
Under `jax.jit` and `torch.compile` these calls happen only while tracing.
"""

from __future__ import annotations

import cProfile
import statistics
import timeit
from collections.abc import Callable
from typing import Any

import pytest
from benchmarks.race.timing import seconds
from benchmarks.workloads import WORKLOADS, Workload, inputs_of, parameters_of

from transparity.taps import identity, scoped, tap_shapes
from transparity_conformance.oracle.backends import backend, installed

TINY, SMALL = WORKLOADS["tiny-encoder-decoder"], WORKLOADS["length-128"]
ROUNDS, CALLS = 5, 100_000


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """Count the calls of `identity` (one per tap) and of `scoped` (one per layer and part of a layer) in `run`."""
    profile = cProfile.Profile()
    profile.runcall(run)
    calls = {entry.code: entry.callcount for entry in profile.getstats()}
    return {function.__name__: calls.get(function.__code__, 0) for function in (identity, scoped)}


def fast_path(name: str, workload: Workload) -> Callable[[], Any]:
    """Return a forward pass of a column in its usual mode, after a first call."""
    forward, inputs = backend(name)(workload.config, parameters_of(workload), dtype="float32"), inputs_of(workload)

    def run() -> None:
        forward.ready(forward.logits(**inputs))

    run()
    return run


@pytest.mark.parametrize("name", installed())
def test_taps_without_a_listener_take_less_than_a_thousandth(name: str) -> None:
    run = fast_path(name, SMALL)
    calls = {"identity": lambda: identity("scores", None), "scoped": lambda: scoped(identity, "self_attention")}
    each = {name: timeit.timeit(call, number=CALLS) / CALLS for name, call in calls.items()}
    taken = sum(count * each[name] for name, count in counted(run).items())
    assert taken < 1e-3 * statistics.median(seconds(run, "cpu") for _ in range(ROUNDS))


def test_every_tap_is_counted() -> None:
    """Check the count; taps inside attention are not called, because attention without a listener is fused."""
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
