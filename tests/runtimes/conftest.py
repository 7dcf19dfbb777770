"""Fixtures: checkpoints from which artifacts are made, and a check of an artifact from the command line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from transparity_conformance.checkpoints.examples import example_config
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.cli import app
from transparity_conformance.oracle.probes import probe_parameters

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads this variable when it is imported


@dataclass(frozen=True)
class Checked:
    """The exit code and the output of a check."""

    exit_code: int
    report: dict[str, Any]
    """The last report as JSON; empty if none was written."""
    errors: str

    @property
    def last_line(self) -> str:
        """Return the last line of the errors."""
        return self.errors.strip().splitlines()[-1]

    @property
    def causes(self) -> list[str]:
        """Return the ids of all causes."""
        return [cause["mistake"] for fault in self.report["faults"] for cause in fault["causes"]]


Check = Callable[..., Checked]


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes a family's small model with random weights and returns its folder."""
    root = tmp_path_factory.mktemp("hub")

    def folder(family: str) -> Path:
        if not (root / family).exists():
            config = example_config(family)
            export_checkpoint(family, config, probe_parameters(config), root / family)
        return root / family

    return folder


@pytest.fixture
def check() -> Check:
    """Return a function that runs `transparity check` with its arguments."""

    def checked(*arguments: Any) -> Checked:
        result = CliRunner().invoke(app, ["check", *map(str, arguments), "--json", "-"])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        reports = json.loads(result.stdout or "[]")
        return Checked(result.exit_code, reports[-1] if reports else {}, result.stderr)

    return checked
