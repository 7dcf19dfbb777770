"""The hooks of the benchmarks: one test for each case, off under xdist, and a table at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import astuple
from typing import Any

import pytest
from benchmarks.cases import Case, absent, cases
from benchmarks.conforming import conformity, forward_of, inputs_of, ready_run
from benchmarks.figures import Clock, Figures, surroundings, threads
from benchmarks.table import Outcome, Printout
from pytest_benchmark.fixture import BenchmarkFixture
from rich.console import Console

from transparity_conformance.oracle.backends import pinned

OUTCOME = pytest.StashKey[Outcome]()

Measure = Callable[[Case], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[OUTCOME] = Outcome()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Field by field, so that `--benchmark-group-by=param:preset` and its like work."""
    if "case" in metafunc.fixturenames:
        found = cases(all_modes=metafunc.config.getoption("--all-modes", default=False))
        metafunc.parametrize(Case.fields(), [astuple(case) for case in found], ids=map(str, found))


@pytest.fixture
def case(backend: str, mode: str, dtype: str, device: str, preset: str, batch: int, length: int) -> Case:
    return Case(backend, mode, dtype, device, preset, batch, length)


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Times a case, once it was shown to conform; the only way to the clock."""
    if hasattr(request.config, "workerinput"):
        pytest.skip("benchmarks are off under xdist, whose processes share the cores: run them without -n")

    def measured(case: Case) -> None:
        with pinned(case.backend):
            _measure(case, request)

    return measured


def _measure(case: Case, request: pytest.FixtureRequest) -> None:
    outcome = request.config.stash[OUTCOME]
    run = ready_run(forward_of(case), inputs_of(case.workload))
    evidence = conformity(case, run)
    if not evidence.agrees:
        outcome.refused.append(evidence)
        pytest.fail(f"Not timed: {evidence}", pytrace=False)
    benchmark: BenchmarkFixture = request.getfixturevalue("benchmark")
    benchmark.group = str(case.workload)
    clock = Clock()
    with clock.watching():
        benchmark(run)
    if benchmark.stats is None:  # with --benchmark-disable
        return
    figures = Figures(case, evidence, benchmark.stats.stats.median)
    outcome.timed.append(figures)
    benchmark.extra_info |= figures.as_dict()
    benchmark.extra_info |= {"threads": threads(clock.cores_busy), "surroundings": surroundings(case)}


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """What was not timed is said in the file, too."""
    refused = [item.as_dict() for item in config.stash[OUTCOME].refused]
    output_json["not_timed"] = {"refused": refused, "absent": absent()}


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """After pytest-benchmark's own tables, the one that says it all."""
    yield
    outcome = config.stash[OUTCOME]
    if outcome.timed or outcome.refused:
        terminalreporter.section("forward passes")
        terminalreporter.write(_printed(Printout(outcome, absent()), terminalreporter))


def _printed(printout: Printout, terminalreporter: pytest.TerminalReporter) -> str:
    width = int(os.environ.get("COLUMNS", "0")) or max(100, terminalreporter._tw.fullwidth)
    console = Console(width=width, force_terminal=terminalreporter._tw.hasmarkup, highlight=False)
    with console.capture() as captured:
        console.print(printout)
    return captured.get()
