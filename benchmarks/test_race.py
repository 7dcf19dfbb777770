"""The race, for `--benchmark-save` and `--benchmark-compare`: it is run once, then what it measured is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.race.__main__ import cores
from benchmarks.race.candidates import CANDIDATES
from benchmarks.race.race import Conditions, race
from benchmarks.race.rounds import Result
from benchmarks.race.standings import merged
from benchmarks.race.workloads import WORKLOADS

Results = dict[tuple[str, str], Result]

ENTRIES = [
    pytest.param(workload.name, candidate.name, id=f"{workload.name}-{candidate.name}")
    for workload in WORKLOADS.values()
    for candidate in CANDIDATES
    if not candidate.why_missing() and not candidate.why_not(workload)
]


class Clock:
    """Stands still until a measured duration is replayed."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def replay(self, seconds: Iterator[float]) -> None:
        self.now += next(seconds)


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> Results:
    """The race of all that was chosen."""
    chosen: list[dict[str, Any]] = [
        item.callspec.params for item in request.session.items if isinstance(item, pytest.Function)
    ]
    found: Results = {}
    for workload in dict.fromkeys(params["workload"] for params in chosen):
        names = {params["candidate"] for params in chosen if params["workload"] == workload}
        candidates = [candidate for candidate in CANDIDATES if candidate.name in names]
        conditions = Conditions(request.config.getoption("--race"), cores())
        for result in merged(race([WORKLOADS[workload]], candidates, conditions)):
            found[workload, result.candidate.name] = result
    return found


@pytest.mark.parametrize(("workload", "candidate"), ENTRIES)
def test_race(workload: str, candidate: str, results: Results, request: pytest.FixtureRequest) -> None:
    result, clock = results[workload, candidate], Clock()
    if result.failed:
        pytest.fail(f"Not timed: {candidate}, {workload}: {result.failed}", pytrace=False)
    request.applymarker(pytest.mark.benchmark(timer=clock, group=workload))
    benchmark = request.getfixturevalue("benchmark")
    benchmark.extra_info |= {"conformity": (result.ready or {}).get("conformity")}
    benchmark.pedantic(clock.replay, args=(iter(result.seconds.values()),), rounds=len(result.seconds))
