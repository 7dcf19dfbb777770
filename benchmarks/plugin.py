"""The hooks of `pytest --benchmark`: one test for each case, off under xdist, and a table at the end."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field
from typing import Any

import numpy as np
import pytest
from benchmarks.cases import Case, cases, figures, missing
from benchmarks.environment import CoresBusy, threads
from benchmarks.oracles import Expected, conformity, expected_of
from benchmarks.peers.ours import build
from benchmarks.race.candidates import CANDIDATES
from benchmarks.race.report import missing as missing_candidates
from benchmarks.workloads import Run, Task, inputs_of, parameters_of, preset_workload
from pytest_benchmark.fixture import BenchmarkFixture
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from transparity_conformance.oracle.backends import harness, pinned
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.report.comparison import ClaimEvidence, dtype_name

LEGEND = (
    "Tokens are those whose logits are computed; FLOPs are those of matrix products, a multiplication and an addition "
    "each. The last column is the share of the error budget that the logits used."
)

CALLS = 2
"""Calls that are compared with the oracle: the first compiles, the second shows that the first left no state behind."""

Measure = Callable[[Case], None]


@dataclass
class Outcome:
    """The figures of a session, the cases that it refused to time, and those that it could not try."""

    missing: list[str]
    timed: list[dict[str, Any]] = field(default_factory=list)
    refused: list[ClaimEvidence] = field(default_factory=list)


OUTCOME = pytest.StashKey[Outcome]()


def pytest_configure(config: pytest.Config) -> None:
    """Collect the outcome; the race has its own list of what is missing."""
    is_race = config.getoption("--race") is not None
    config.stash[OUTCOME] = Outcome(missing=missing_candidates(CANDIDATES) if is_race else missing())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a case field by field, so that `--benchmark-group-by=param:preset` works."""
    if "case" in metafunc.fixturenames:
        options = metafunc.config.option
        found = cases(all_modes=options.all_modes, device=options.device)
        if not found:
            raise pytest.UsageError(f"no installed backend offers the device {options.device!r}")
        metafunc.parametrize(Case.fields(), [astuple(case) for case in found], ids=map(str, found))


def pytest_report_collectionfinish(config: pytest.Config, items: list[pytest.Item]) -> list[str]:
    """Say what is timed, and what is missing, before the first oracle is computed."""
    lines = [f"missing: {line}" for line in config.stash[OUTCOME].missing]
    return [f"{len(items)} benchmarks; each is compared with the reference, then timed", *lines]


@pytest.fixture
def case(backend: str, mode: str, dtype: str, device: str, preset: str, batch: int, length: int) -> Case:
    return Case(backend, mode, dtype, device, preset, batch, length)


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Time a case that conforms; there is no other way to the clock."""
    if hasattr(request.config, "workerinput"):
        pytest.skip("benchmarks are off under xdist, whose processes share the cores: run them without -n")

    def measured(case: Case) -> None:
        with pinned(case.backend):
            _measure(case, request)

    return measured


def _measure(case: Case, request: pytest.FixtureRequest) -> None:
    outcome = request.config.stash[OUTCOME]
    run = _run_of(case)
    evidence = max((evidence_of(case, run()) for _ in range(CALLS)), key=lambda found: found.share)
    if not evidence.agrees:
        outcome.refused.append(evidence)
        pytest.fail(f"Not timed: {evidence}", pytrace=False)
    benchmark: BenchmarkFixture = request.getfixturevalue("benchmark")
    benchmark.group = str(case.workload)
    cores_busy = CoresBusy()
    with cores_busy.measured():
        benchmark(run)
    if benchmark.stats is None:  # with --benchmark-disable
        return
    found = figures(case, evidence, benchmark.stats.stats.median)
    outcome.timed.append(found | {"seconds": benchmark.stats.stats.median})
    parts = harness(case.backend)
    surroundings = parts.describe(case.device) if parts else {}
    benchmark.extra_info |= found | {"threads": threads(cores_busy.number), "surroundings": surroundings}


def _run_of(case: Case) -> Run:
    """The forward pass that is compared and then timed."""
    parameters = _parameters_of(case.preset)
    task = Task(case.workload, parameters, inputs_of(case.workload), folder="", device=case.device)
    return build(task, case.backend, case.mode)


def evidence_of(case: Case, logits: Any) -> ClaimEvidence:
    """Compare logits, which have to be of the precision that was asked for."""
    held = conformity(_expected_of(case.preset, case.batch, case.length), logits)
    right_dtype = (dtype := dtype_name(logits)) == case.dtype
    error, note = (held["error"], "") if right_dtype else (np.inf, f"the logits are {dtype}")
    named = "benchmark.forward", case.subject, str(case.workload), "logits"
    return ClaimEvidence(*named, error, held["budget"], note=note)


@functools.lru_cache(maxsize=1)
def _parameters_of(preset: str) -> Arrays:
    return parameters_of(preset_workload(preset, 1, 1))


@functools.lru_cache(maxsize=1)
def _expected_of(preset: str, batch: int, length: int) -> Expected:
    workload = preset_workload(preset, batch, length)
    return expected_of(workload, _parameters_of(preset), inputs_of(workload))


def pytest_benchmark_update_json(config: pytest.Config, output_json: dict[str, Any]) -> None:
    """Add what was not timed."""
    outcome = config.stash[OUTCOME]
    refused = [evidence.as_dict() for evidence in outcome.refused]
    output_json["not_timed"] = {"refused": refused, "absent": outcome.missing}


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> Iterator[None]:
    """Print the figures of all cases below pytest-benchmark's own tables."""
    yield
    outcome = config.stash[OUTCOME]
    if outcome.timed or outcome.refused:
        terminalreporter.section("forward passes")
        width = int(os.environ.get("COLUMNS", "0")) or max(100, terminalreporter._tw.fullwidth)
        console = Console(width=width, force_terminal=terminalreporter._tw.hasmarkup, highlight=False)
        with console.capture() as captured:
            console.print(as_text(outcome))
        terminalreporter.write(captured.get())


def as_text(outcome: Outcome) -> Group:
    """The table of the figures, then what was refused and what is missing."""
    parts: list[RenderableType] = [as_table(outcome.timed), Text(LEGEND, style="dim")] if outcome.timed else []
    refused = [str(evidence) for evidence in outcome.refused]
    for title, lines, style in (("Not conforming, not timed", refused, "red"), ("Missing", outcome.missing, "")):
        parts += [Text(f"{title}: {len(lines)}", style=f"bold {style}")] if lines else []
        parts += [Text(f"  {line}", style=style) for line in lines]
    return Group(*parts)


def as_table(timed: list[dict[str, Any]]) -> Table:
    """Workload × backend; the backends of one workload follow each other."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("preset", "shape", "backend"):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "tokens/s", "GFLOP/s", "budget"):
        table.add_column(name, justify="right", no_wrap=True)
    before = None
    for row in timed:
        workload = row["preset"], f"{row['batch']}×{row['length']}"
        device = "" if row["device"] == "cpu" else f" on {row['device']}"
        table.add_row(
            *(workload if workload != before else ("", "")),
            f"{row['backend']} {row['mode']}{device}",
            f"{row['seconds'] * 1e3:.2f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['gflops_per_second']:,.1f}",
            f"{row['conformity']['share']:.0%}",
        )
        before = workload
    return table
