"""Taps without a listener take a negligible share of a forward pass.

Calls that exist only for taps are counted and timed. The difference of two forward passes
would be noise. Under `jax.jit` and `torch.compile` there are none, for they happen while tracing.
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
    """The number of calls in `run` of `identity`, one a tap, and of `scoped`, one a layer and a part of it."""
    profile = cProfile.Profile()
    profile.runcall(run)
    calls = {entry.code: entry.callcount for entry in profile.getstats()}
    return {function.__name__: calls.get(function.__code__, 0) for function in (identity, scoped)}


def fast_path(name: str, workload: Workload) -> Callable[[], Any]:
    """A forward pass of the column `name` in its usual mode, run once."""
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
