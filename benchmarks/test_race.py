"""The race: every candidate on every workload that it can run."""

from __future__ import annotations

from benchmarks.plugin import Measure


def test_race(workload: str, candidate: str, measure: Measure) -> None:
    measure(workload, candidate)
