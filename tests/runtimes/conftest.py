"""Checkpoints that artifacts are made of, and a check of an artifact on the command line."""

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

os.environ.setdefault("KERAS_BACKEND", "torch")  # read when Keras is imported


@dataclass(frozen=True)
class Checked:
    """The end of a check."""

    exit_code: int
    report: dict[str, Any]
    """The last report as JSON; empty without one."""
    errors: str

    @property
    def last_line(self) -> str:
        """The last line of the errors."""
        return self.errors.strip().splitlines()[-1]

    @property
    def causes(self) -> list[str]:
        """The ids of all causes."""
        return [cause["mistake"] for fault in self.report["faults"] for cause in fault["causes"]]


Check = Callable[..., Checked]


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's small model with drawn weights."""
    root = tmp_path_factory.mktemp("hub")

    def folder(family: str) -> Path:
        if not (root / family).exists():
            config = example_config(family)
            export_checkpoint(family, config, probe_parameters(config), root / family)
        return root / family

    return folder


@pytest.fixture
def check() -> Check:
    """`check(artefact, "--checkpoint", folder)` as a user calls it."""

    def checked(*arguments: Any) -> Checked:
        result = CliRunner().invoke(app, ["check", *map(str, arguments), "--json", "-"])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        reports = json.loads(result.stdout or "[]")
        return Checked(result.exit_code, reports[-1] if reports else {}, result.stderr)

    return checked
