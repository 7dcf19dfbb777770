"""`pytest --benchmark` times only backends that conform, and its figures are those of the named workload."""

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
from benchmarks import cases
from benchmarks.cases import Case, figures
from benchmarks.oracles import expected_of
from benchmarks.plugin import evidence_of
from benchmarks.workloads import WORKLOADS, Workload, inputs_of, parameters_of, preset_shapes, preset_workload

from transparity.presets import PRESETS
from transparity_conformance.oracle.oracle import forward_oracle
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence

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
    """The exit code, output and JSON of `pytest --benchmark`, and the calls of each backend."""

    returncode: int
    output: str
    report: dict[str, Any]
    calls: dict[str, int]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """The benchmarks of one workload with four strangers installed."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "strangers.py").write_text(STRANGERS)
    installed = folder / "strangers-1.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1\n")
    (installed / "entry_points.txt").write_text(ENTRY_POINTS)
    report = folder / "report.json"
    chosen = "walkthrough-1x10 and (right or wrong or drifting or missing)"
    options = ["--benchmark", "-k", chosen, f"--benchmark-json={report}", "--benchmark-max-time=0.1"]
    ended = pytest_in(folder, *options, "-p", "no:cacheprovider")
    calls = {path.stem: int(path.read_text()) for path in folder.glob("*.calls")}
    return Session(ended.returncode, ended.stdout + ended.stderr, json.loads(report.read_text()), calls)


def pytest_in(path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A session of its own, even if this one is a worker of xdist."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment = inherited | {"PYTHONPATH": str(path), "COLUMNS": "200"}
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_only_conforming_backends_are_timed(session: Session) -> None:
    assert session.returncode == pytest.ExitCode.TESTS_FAILED, session.output
    assert [timed["extra_info"]["backend"] for timed in session.report["benchmarks"]] == ["right"]
    assert "1 passed" in session.output
    assert "2 failed" in session.output


def test_a_wrong_backend_is_never_run_again(session: Session) -> None:
    """Wrong backends are called for the two comparisons alone; the right one is timed as well."""
    assert session.calls["wrong"] == session.calls["drifting"] == 2
    assert session.calls["right"] > 2


def test_the_reason_for_not_timing_is_printed(session: Session) -> None:
    says = "benchmark.forward, {} float32 eager, walkthrough-1x10: logits differs by 0.001"
    for name in ("wrong", "drifting"):
        assert f"Not timed: {says.format(name)}" in session.output
    assert [refused["backend"] for refused in session.report["not_timed"]["refused"]] == ["drifting", "wrong"]


def test_missing_backends_and_devices_are_listed(session: Session) -> None:
    absent = session.report["not_timed"]["absent"]
    missing = "missing: it cannot be imported (No module named 'a_framework_that_is_not_installed')"
    right = "right on cuda: it is not among its devices here (cpu)"
    assert {missing, right} <= set(absent)
    assert missing in session.output
    assert right in session.output


def test_the_report_records_the_environment(session: Session) -> None:
    (timed,) = session.report["benchmarks"]
    said, median = timed["extra_info"], timed["stats"]["median"]
    assert said["tokens_per_second"] == pytest.approx(10 / median)
    assert said["gflops_per_second"] == pytest.approx(said["flops"] / median / 1e9)
    assert 0 < said["conformity"]["error"] <= said["conformity"]["budget"]
    assert said["surroundings"]["matmul"]
    assert said["threads"]["cores"] >= 1


@pytest.mark.long
def test_benchmarks_are_off_under_xdist(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    ended = pytest_in(tmp_path, "--benchmark", "-k", "walkthrough-1x10", "-n", "1", "-rs", "-p", "no:cacheprovider")
    assert ended.returncode == pytest.ExitCode.OK, ended.stdout
    assert "benchmarks are off under xdist" in ended.stdout


def test_shapes_end_at_the_presets_length() -> None:
    shapes = preset_shapes()
    assert [shape for shape in shapes if shape[0] == "walkthrough"] == [("walkthrough", 1, 10), ("walkthrough", 8, 10)]
    assert [shape[1:] for shape in shapes if shape[0] == "translation"] == [(1, 32), (1, 64), (8, 32), (8, 64)]
    case = Case("pytorch", "eager", "float32", "cpu", "translation", 8, 64)
    assert str(case) == "pytorch-eager-float32-cpu-translation-8x64"


@pytest.mark.parametrize(("name", "batch", "length"), preset_shapes())
def test_inputs_have_the_named_shape_and_no_padding(name: str, batch: int, length: int) -> None:
    """Padding would be counted as tokens."""
    workload = preset_workload(name, batch, length)
    assert str(workload) == f"{name}-{batch}x{length}"
    inputs, pad = inputs_of(workload), workload.config.pad_id
    assert set(inputs) == set(workload.config.input_names)
    for tokens in inputs.values():
        assert tokens.shape == (batch, length)
        assert pad is None or (tokens != pad).all()


def test_every_preset_and_every_mode_is_timed() -> None:
    found = cases.cases(all_modes=True)
    assert {case.preset for case in found} == set(PRESETS)
    assert {("pytorch", "compile"), ("flax", "eager")} <= {(case.backend, case.mode) for case in found}
    assert len(set(map(str, found))) == len(found)


def test_tokens_a_second_count_the_output_alone() -> None:
    case = Case("numpy", "eager", "float32", "cpu", "translation", 8, 64)
    evidence = ClaimEvidence("benchmark.forward", BackendSubject("numpy", "float32"), "", "logits", 0.0, 1.0)
    found = figures(case, evidence, seconds=0.5)
    assert found["tokens_per_second"] == 8 * 64 / 0.5
    assert found["source_tokens"] == 8 * 64


@pytest.mark.long
def test_one_device_can_be_chosen(tmp_path: Path) -> None:
    collected = pytest_in(tmp_path, "--benchmark", "--device", "cpu", "--collect-only", "-q", "-p", "no:cacheprovider")
    assert "numpy-eager-float32-cpu-walkthrough-1x10" in collected.stdout
    refused = pytest_in(tmp_path, "--benchmark", "--device", "abacus", "-q", "-p", "no:cacheprovider")
    assert refused.returncode == pytest.ExitCode.INTERRUPTED
    assert "no installed backend offers the device 'abacus'" in refused.stdout


@pytest.mark.parametrize(
    "workload", [preset_workload("walkthrough", 1, 10), WORKLOADS["tiny-decoder"], WORKLOADS["tiny-bfloat16"]], ids=str
)
def test_the_gate_is_the_oracle_of_the_conformance_suite(workload: Workload) -> None:
    """The expected logits and the budget, with the error measured at one point."""
    parameters, inputs = dict(parameters_of(workload)), inputs_of(workload)
    expected = expected_of(workload, parameters, inputs)
    oracle = forward_oracle(workload.config, parameters, inputs, neighbours=1)
    assert np.array_equal(expected.values, oracle.expected["logits"])
    assert expected.budget == pytest.approx(oracle.budget("logits", workload.dtype), rel=1e-12)


def test_logits_of_another_precision_are_refused() -> None:
    case = Case("numpy", "eager", "float32", "cpu", "walkthrough", 1, 10)
    workload = case.workload
    right = expected_of(workload, parameters_of(workload), inputs_of(workload)).values
    assert evidence_of(case, right.astype(np.float32)).agrees
    evidence = evidence_of(case, right)
    assert not evidence.agrees
    assert evidence.note == "the logits are float64"
