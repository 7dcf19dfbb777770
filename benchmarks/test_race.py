"""The race for `--benchmark-save` and `--benchmark-compare`: it runs once, then its seconds are replayed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from benchmarks.environment import cores
from benchmarks.race.candidates import CANDIDATES
from benchmarks.race.race import Conditions, Result, able_to, race
from benchmarks.workloads import WORKLOADS

Results = dict[tuple[str, str], Result]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test for every installed candidate and every workload that it can run on the device."""
    device = metafunc.config.option.device or "cpu"
    entries = [
        pytest.param(workload.name, candidate.name, id=f"{workload.name}-{candidate.name}")
        for workload in WORKLOADS.values()
        for candidate in able_to(workload, CANDIDATES, device)
    ]
    metafunc.parametrize(("workload", "candidate"), entries)


@pytest.fixture(scope="session")
def results(request: pytest.FixtureRequest) -> Results:
    """The race of the selected tests."""
    options = request.config.option
    selected: list[dict[str, Any]] = [
        item.callspec.params for item in request.session.items if isinstance(item, pytest.Function)
    ]
    conditions = Conditions(options.race, cores(), options.device or "cpu")
    found: Results = {}
    for workload in dict.fromkeys(params["workload"] for params in selected):
        names = {params["candidate"] for params in selected if params["workload"] == workload}
        for result in race(WORKLOADS[workload], [each for each in CANDIDATES if each.name in names], conditions):
            found[workload, result.candidate.name] = result
    return found


def test_race(workload: str, candidate: str, results: Results, request: pytest.FixtureRequest) -> None:
    result = results[workload, candidate]
    if result.failed:
        pytest.fail(f"Not timed: {candidate}, {workload}: {result.failed}", pytrace=False)
    # A round lasts from one reading of the clock to the next.
    readings = itertools.chain.from_iterable((0.0, seconds) for seconds in result.seconds.values())
    request.applymarker(pytest.mark.benchmark(timer=lambda: next(readings), group=workload))
    benchmark = request.getfixturevalue("benchmark")
    benchmark.extra_info |= {"conformity": (result.ready or {}).get("conformity")}
    benchmark.pedantic(lambda: None, rounds=len(result.seconds))
