"""Choose which tests over half a second are deferred, from the lines of code that each test runs.

| `python -m tests.choosing` | |
|---|---|
| `record` | runs the tests, and records the lines of each into `build/lines/`; claims are left out |
| `choose` | writes `tests/deferred.json`, the tests that only `nox -s nightly` runs |
| `mutants` | changes lines of the checker, and prints the changes that only a deferred test notices |

`nox -s choose` takes the first two steps. `mutants` runs the tests that run a changed line, and takes hours. Add each
deferred test that it prints to `KILLERS`.
"""

from __future__ import annotations

import argparse
import heapq
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import conftest
import coverage
import pytest

from meta.mutation.mutants import Mutant, mutants

ROOT = Path(__file__).parents[1]
RECORDED = ROOT / "build/lines"
CHECKER = "conformance/transparity_conformance"
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

KILLERS: dict[str, str] = {}
"""Tests that are never deferred, because no other test notices a mutant; each value describes the mutant."""

BUDGET = 175.0
"""The processor time of `nox -s tests` without claims, in seconds."""

PATIENCE = 60.0
"""The processor time for the tests of one mutant in seconds, both for `nox -s tests` and for deferred tests."""

Lines = dict[str, set[tuple[str, int]]]
"""The lines that each test runs."""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    os.environ["RECORDED_TEST"] = item.nodeid
    running = coverage.Coverage.current()
    assert running is not None
    running.switch_context(item.nodeid)
    return (yield)


def record(arguments: list[str]) -> int:
    """Run tests, record the lines of each, and return the exit code."""
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

    Short tests are never deferred, and neither are the tests that `CRITICAL` and `KILLERS` name. Each step adds the
    test with the highest number of new lines per second, until the tests take `BUDGET`. When no test runs a new line,
    each step adds the test with the most lines that only one other test runs.
    """
    free = {test for test in lines if seconds[test] > conftest.QUICK and not test.startswith((*CRITICAL, *KILLERS))}
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


def drawn(places: list[tuple[str, int]], sample: int, seed: int) -> Iterator[Mutant]:
    draw = random.Random(seed)
    while sample:
        file, line = draw.choice(places)
        if of_line := [mutant for mutant in mutants(file, (ROOT / file).read_text()) if mutant.line == line]:
            yield draw.choice(of_line)
            sample -= 1


def check_mutants(sample: int, seed: int) -> int:
    """Print which test notices each drawn mutant; return 1 if only a deferred test notices one."""
    lines, deferred = recorded(), conftest.deferred()
    tested: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for test in sorted(lines, key=seconds_of):
        for line in lines[test]:
            tested[line].append(test)
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        ignored = shutil.ignore_patterns("build", ".git", ".nox", ".*cache", "__pycache__")
        tree = Path(shutil.copytree(ROOT, Path(folder, "tree"), ignore=ignored))
        for mutant in drawn(sorted(place for place in tested if place[0].startswith(CHECKER)), sample, seed):
            tests = tested[mutant.file, mutant.line]
            killer = first_failure(tree, mutant, [test for test in tests if test not in deferred])
            late = "" if killer else first_failure(tree, mutant, [test for test in tests if test in deferred])
            lost += bool(late)
            told = f"killed by {killer}" if killer else f"LOST: {late}" if late else "survives"
            print(f"{mutant.file}:{mutant.line}: {mutant.change}: {told}", flush=True)  # noqa: T201
    return int(lost > 0)


def first_failure(tree: Path, mutant: Mutant, tests: list[str]) -> str:
    """Write a mutant into the tree; return the first test that fails, or an empty string."""
    total, tried = 0.0, list[str]()
    for test in tests:
        total += seconds_of(test)
        if total <= PATIENCE or not tried:
            tried.append(test)
    if not tried:
        return ""
    path = tree / mutant.file
    right = path.read_text()
    path.write_text(mutant.source)
    places = os.pathsep.join(str(tree / name) for name in ("reference", "backends", "conformance", "."))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tried]
    try:
        ended = subprocess.run(
            command,
            cwd=tree,
            env=os.environ | {"PYTHONPATH": places},
            capture_output=True,
            text=True,
            check=False,
            timeout=6 * PATIENCE,
        )
    except subprocess.TimeoutExpired:
        return "a time limit"
    finally:
        path.write_text(right)
    failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return " ".join(failed[:1] or ["an error"]) if ended.returncode else ""


def main() -> int:
    if sys.argv[1:2] == ["record"]:
        return record(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", nargs="?", choices=("choose", "mutants"), default="choose")
    parser.add_argument("--sample", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    return choose() if options.step == "choose" else check_mutants(options.sample, options.seed)


if __name__ == "__main__":
    sys.exit(main())
