"""`python -m benchmarks.tap_cost`: the cost of taps in a forward pass without a listener.

The calls that would not be there without taps are counted and timed by themselves; the difference between two forward
passes would be lost in their noise. Under `jax.jit` and `torch.compile` there are none, for they happen while tracing.
"""

from __future__ import annotations

import cProfile
import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.workloads import WORKLOADS, Workload, inputs_of, parameters_of
from rich.console import Console
from rich.table import Table

from transparity.taps import identity, scoped
from transparity_conformance.oracle.backends import backend, installed

ROUNDS, CALLS = 5, 100_000


@dataclass(frozen=True)
class TapCost:
    """The cost of taps in one forward pass."""

    calls: int
    """Of `identity`, one a tap, and of `scoped`, one a layer and a part of it."""
    seconds: float
    """Of these calls."""
    forward_seconds: float
    """Of the whole forward pass, the median."""

    @property
    def share(self) -> float:
        return self.seconds / self.forward_seconds


def tap_cost(run: Callable[[], Any]) -> TapCost:
    """The cost of the taps in `run`, which has been run before."""
    counts = counted(run)
    each = {
        "identity": timeit.timeit(lambda: identity("scores", None), number=CALLS) / CALLS,
        "scoped": timeit.timeit(lambda: scoped(identity, "self_attention"), number=CALLS) / CALLS,
    }
    seconds = sum(count * each[name] for name, count in counts.items())
    return TapCost(sum(counts.values()), seconds, statistics.median(timeit.repeat(run, number=1, repeat=ROUNDS)))


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """The number of calls of `identity` and of `scoped` in `run`."""
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


def main() -> None:
    """Print a table of the columns, on the encoder-decoder of the race."""
    workload = WORKLOADS["encoder-decoder"]
    table = Table("column", "calls", "they take", "the forward pass takes", "share", title="Taps without a listener")
    for name in installed():
        cost = tap_cost(fast_path(name, workload))
        row = f"{cost.calls:,}", f"{cost.seconds * 1e6:,.0f} µs", f"{cost.forward_seconds * 1e3:,.0f} ms"
        table.add_row(name, *row, f"{cost.share:.4%}")
    Console().print(table)


if __name__ == "__main__":
    main()
