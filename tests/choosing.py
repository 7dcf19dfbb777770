"""Choose which tests over half a second are deferred, from the lines of code that each test runs.

| `python -m tests.choosing` | |
|---|---|
| `record` | runs the tests, and records the lines of each into `build/lines/`; claims are left out |
| `choose` | writes `tests/deferred.json`, the tests that only `nox -s nightly` runs |

`nox -s choose` runs `record`, then `choose`.
"""

import heapq
import math
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import conftest
import coverage
import pytest

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "build/lines"
SOURCES = ("reference", "backends", "conformance", "benchmarks", "docs")

SETTINGS = """[run]
data_file = {folder}/lines
parallel = true
context = ${{RECORDED_TEST-}}
source = {sources}
patch = _exit
disable_warnings = trace-changed, module-not-imported, no-data-collected, module-not-measured
"""

CRITICAL = (
    "tests/bundles/test_hostile.py",
    "tests/check/test_isolation.py",
    "tests/check/test_process.py",
    "tests/golden/",
)
"""Tests that are never deferred: hostile inputs, isolation, exit codes and golden reports."""

BUDGET = 175.0
"""The processor time of `nox -s tests` without claims, in seconds."""

Lines = dict[str, set[tuple[str, int]]]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    os.environ["RECORDED_TEST"] = item.nodeid
    running = coverage.Coverage.current()
    assert running is not None
    running.switch_context(item.nodeid)
    return (yield)


def record(arguments: list[str]) -> int:
    RECORDED.mkdir(parents=True, exist_ok=True)
    settings = RECORDED / "coveragerc"
    settings.write_text(SETTINGS.format(folder=RECORDED, sources=",".join(str(ROOT / name) for name in SOURCES)))
    command = [sys.executable, "-m", "pytest", "-p", "tests.choosing", "--deferred", "conformance/meta", "tests"]
    environment = os.environ | {"COVERAGE_PROCESS_START": str(settings)}
    return subprocess.run([*command, *arguments], env=environment, check=False).returncode


def recorded() -> Lines:
    found: Lines = defaultdict(set)
    for path in sorted(RECORDED.glob("lines.*")):
        data = coverage.CoverageData(str(path))
        data.read()
        for file in data.measured_files():
            name = str(Path(file).relative_to(ROOT))
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    found[test].add((name, line))
    return {test: found[test] for test in sorted(found) if test}


def seconds_of(test: str) -> float:
    file, name = conftest.name_of(test)
    return conftest.measured().get(file, {}).get(name, 0.0)


def chosen(lines: Lines, seconds: dict[str, float]) -> list[str]:
    """Return the tests that are not deferred.

    Short tests and the tests that `CRITICAL` names are never deferred. Each step adds the test with the highest number
    of new lines per second, until the tests take `BUDGET`. When no test runs a new line, each step adds
    the test with the most lines that only one other test runs.
    """
    free = {test for test in lines if seconds[test] > conftest.QUICK and not test.startswith(CRITICAL)}
    kept = sorted(lines.keys() - free)
    times = Counter(line for test in kept for line in lines[test])
    for wanted in (1, 2):
        heap = [(-math.inf, test) for test in sorted(free)]
        while heap:
            test = heapq.heappop(heap)[1]
            rate = sum(times[line] < wanted for line in lines[test]) / seconds[test]
            if heap and rate < -heap[0][0]:
                heapq.heappush(heap, (-rate, test))
            elif rate and sum(seconds[each] for each in (*kept, test)) <= BUDGET:
                kept.append(test)
                free.remove(test)
                times.update(lines[test])
    return kept


def choose() -> int:
    lines = recorded()
    seconds = {test: seconds_of(test) for test in lines}
    kept = chosen(lines, seconds)
    deferred: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for test in lines.keys() - set(kept):
        file, _, name = test.partition("::")
        deferred[file][name] = seconds[test]
    conftest.write_seconds(conftest.DEFERRED, deferred)
    every, run = (set[tuple[str, int]]().union(*(lines[test] for test in tests)) for tests in (lines, kept))
    print(f"{len(kept)} of {len(lines)} tests stay; they run {len(run)} of {len(every)} lines.")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(record(sys.argv[2:]) if sys.argv[1] == "record" else choose())
