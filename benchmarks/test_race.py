"""The race: every workload with every candidate that can run the workload."""

from benchmarks.plugin import Measure


def test_race(workload: str, candidate: str, measure: Measure) -> None:
    measure(workload, candidate)
