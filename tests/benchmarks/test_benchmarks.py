"""`pytest --benchmark` times only backends that conform, and pytest-benchmark receives their times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.oracles import conformity, expected_of
from benchmarks.race.results import kept_rows
from benchmarks.race.rows import Row
from benchmarks.workloads import WORKLOADS, Workload, inputs_of, parameters_of

from transparity.presets import PRESETS, preset
from transparity_conformance.oracle.oracle import forward_oracle

ROOT = Path(__file__).parents[2]

STRANGERS = '''
"""A right backend, a slightly wrong one, and one that is wrong from its second call on."""
from pathlib import Path

from transparity_numpy.port import NumpyBackend

CALLS = Path(__file__).parent


class Stranger(NumpyBackend):
    def __init__(self, name, wrong_from):
        self.name, self.wrong_from = name, wrong_from

    def __call__(self, *arguments, **choices):
        forward = super().__call__(*arguments, **choices)
        right, calls = forward.logits, 0

        def logits(**tokens):
            nonlocal calls
            calls += 1
            (CALLS / f"{self.name}.calls").write_text(str(calls))
            logits = right(**tokens)
            return logits + logits.dtype.type(1e-3) if calls >= self.wrong_from else logits

        forward.logits = logits
        return forward


right, wrong, drifting = (Stranger(*each) for each in (("right", 10**9), ("wrong", 1), ("drifting", 2)))
'''

ENTRY_POINTS = """
[transparity.backends]
right = strangers:right
wrong = strangers:wrong
drifting = strangers:drifting
missing = a_framework_that_is_not_installed:build

[transparity.harnesses]
right = transparity_numpy.harness
"""


@dataclass(frozen=True)
class Session:
    """The exit code, output and saved results of `pytest --benchmark`, and the number of calls of each backend."""

    returncode: int
    output: str
    saved: list[dict[str, Any]]
    """The results that pytest-benchmark saved."""
    rows: dict[str, Row]
    calls: dict[str, int]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Run the benchmarks of one workload with four third-party backends installed."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "strangers.py").write_text(STRANGERS)
    installed = folder / "strangers-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    saved, results = folder / "saved.json", folder / "results.json"
    chosen = "walkthrough-1x32 and (right or wrong or drifting or missing)"
    options = ["--benchmark", "-k", chosen, f"--benchmark-json={saved}", f"--output={results}", "--rounds=3"]
    ended = pytest_in(folder, *options, "-p", "no:cacheprovider")
    output = ended.stdout + ended.stderr
    assert results.exists(), output
    rows = {row.candidate: row for row in kept_rows(results)}
    calls = {path.stem: int(path.read_text()) for path in folder.glob("*.calls")}
    return Session(ended.returncode, output, json.loads(saved.read_text())["benchmarks"], rows, calls)


def pytest_in(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a new session, even if this test runs in a worker of xdist."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = inherited | {"PYTHONPATH": str(path), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_only_conforming_backends_are_timed(session: Session) -> None:
    assert session.returncode == pytest.ExitCode.TESTS_FAILED, session.output
    assert {name for name, row in session.rows.items() if row.seconds} == {"right eager"}
    assert "1 passed" in session.output
    assert "2 failed" in session.output


def test_pytest_benchmark_receives_the_rounds_of_what_was_timed(session: Session) -> None:
    (saved,) = session.saved
    taken = session.rows["right eager"].seconds
    assert taken
    assert saved["stats"]["rounds"] == 3
    assert saved["stats"]["median"] == pytest.approx(taken.middle, rel=1e-5)
    assert saved["extra_info"]["conformity"]["share"] <= 1


def test_a_wrong_backend_is_never_run_again(session: Session) -> None:
    """Check the number of calls: a wrong backend is called for two comparisons, the right one also for the timing."""
    assert session.calls["wrong"] == session.calls["drifting"] == 2
    assert session.calls["right"] == 2 + 3


def test_the_reason_for_not_timing_is_printed_and_kept(session: Session) -> None:
    for name in ("wrong eager", "drifting eager"):
        assert f"Not timed: {name}, walkthrough-1x32: refused: it differs by 0.001" in session.output
        assert session.rows[name].failed.startswith("refused: it differs by 0.001")


def test_missing_backends_are_listed(session: Session) -> None:
    assert "missing: missing: a_framework_that_is_not_installed is not installed" in session.output


def test_there_is_one_table(session: Session) -> None:
    assert session.output.count("right eager ") == 1
    assert "Rounds" not in session.output


def test_every_preset_is_a_workload_and_its_lengths_end_where_the_presets_do() -> None:
    assert {workload.config for workload in WORKLOADS.values() if not workload.peers} == set(map(preset, PRESETS))
    assert set(WORKLOADS["walkthrough-8x64"].lengths.values()) == {10}
    assert set(WORKLOADS["translation-8x64"].lengths.values()) == {64}


@pytest.mark.parametrize("workload", [each for each in WORKLOADS.values() if not each.peers], ids=str)
def test_inputs_have_the_named_shape_and_no_padding(workload: Workload) -> None:
    """Check the inputs of a workload; padding would count as tokens."""
    inputs, pad = inputs_of(workload), workload.config.pad_id
    assert set(inputs) == set(workload.config.input_names)
    for name, tokens in inputs.items():
        assert tokens.shape == (workload.batch, workload.lengths[name])
        assert pad is None or (tokens != pad).all()


@pytest.mark.parametrize("name", ["walkthrough-1x32", "tiny-decoder", "tiny-bfloat16"])
def test_the_gate_is_the_oracle_of_the_conformance_suite(name: str) -> None:
    """Check that benchmarks compare with the suite's expected logits, and with a budget measured at one point."""
    workload = WORKLOADS[name]
    parameters, inputs = dict(parameters_of(workload)), inputs_of(workload)
    expected = expected_of(workload, parameters, inputs)
    oracle = forward_oracle(workload.config, parameters, inputs, neighbours=1)
    assert np.array_equal(expected.values, oracle.expected["logits"])
    assert expected.budget == pytest.approx(oracle.budget("logits", workload.dtype), rel=1e-12)


def test_logits_of_another_precision_are_refused() -> None:
    workload = WORKLOADS["walkthrough-1x32"]
    expected = expected_of(workload, parameters_of(workload), inputs_of(workload))
    assert conformity(expected, expected.values.astype(np.float32))["share"] <= 1
    assert conformity(expected, expected.values)["share"] == np.inf
