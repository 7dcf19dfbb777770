"""`--ranks N` runs a loader of hub folders, or a program that reads its rank from the environment."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from transparity_conformance.cli import app

PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from safetensors.numpy import save_file
from transparity_conformance.exchange.reading import read_bundle
from transparity_numpy.port import build

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
bundle = read_bundle(Path(sys.argv[1]))
written = {}
for key, probe in bundle.probes.items():
    parameters = dict(probe.parameters)
    if sys.argv[3:] == ["twice"]:
        parameters["head.bias"] = parameters["head.bias"] * np.float32(ranks)
    logits = build(probe.config, parameters, dtype="float32").logits(**probe.inputs)
    written[f"{key}/logits"] = np.asarray(logits, np.float32)
if rank == 0 or sys.argv[3:] != ["quiet"]:
    save_file(written, sys.argv[2])
"""


def checked(*arguments: str) -> tuple[int, dict[str, Any], str]:
    done = CliRunner().invoke(app, ["check", *arguments, "--json", "report.json"])
    reports = json.loads(Path("report.json").read_text()) if Path("report.json").exists() else []
    return done.exit_code, reports[0] if reports else {}, done.output


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    return f"{sys.executable} program.py {{bundle}} {{actual}}"


def test_a_program_is_run_on_every_rank_and_on_one(program: str) -> None:
    code, report, _ = checked("--command", f"{program} quiet", "--ranks", "2", "--preset", "notes-lm")
    assert (code, report["ranks"]["one_rank"]) == (0, "agrees")
    assert any("they wrote no file" in line for line in report["not_compared"])


def test_what_a_program_does_on_every_rank_is_named(program: str) -> None:
    code, report, _ = checked("--command", f"{program} twice", "--ranks", "2", "--preset", "notes-lm")
    assert (code, report["ranks"]["one_rank"]) == (1, "diverges")
    assert report["faults"][0]["causes"][0]["mistake"] == "bias-on-every-rank"


def test_a_program_that_fails_on_a_rank_names_it(program: str) -> None:
    command = f'{sys.executable} -c \'import os, sys; sys.exit(3 * (os.environ["RANK"] == "1"))\''
    code, _, said = checked("--command", command, "--ranks", "2", "--preset", "notes-lm")
    assert code == 2
    assert "Rank 1 of the command" in said
    assert "ended with the exit code 3" in said


def test_an_artefact_has_no_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.onnx").write_bytes(b"")
    code, _, said = checked("model.onnx", "--ranks", "2", "--preset", "notes-lm")
    assert (code, "--ranks needs a PORT that makes a model" in said) == (2, True)


@pytest.mark.long
def test_a_loader_is_given_folders_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    port = f"{Path(__file__).with_name('sharded_llama.py')}:load"
    code, report, _ = checked(port, "--ranks", "2", "--family", "llama", "--no-audit")
    assert (code, report["ranks"]["one_rank"], report["ranks"]["placements"]) == (0, "agrees", {"logits": "sharded:-1"})
