import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import exported, invoke

os.environ.setdefault("KERAS_BACKEND", "torch")  # Keras reads this variable when it is imported


@dataclass(frozen=True)
class Checked:
    exit_code: int
    report: dict[str, Any]
    """The last report as JSON; empty if none was written."""
    errors: str

    @property
    def last_line(self) -> str:
        return self.errors.strip().splitlines()[-1]

    @property
    def causes(self) -> list[str]:
        return [cause["mistake"] for fault in self.report["faults"] for cause in fault["causes"]]


Check = Callable[..., Checked]
Hub = Callable[[str], Path]


@pytest.fixture(scope="session")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Hub:
    root = tmp_path_factory.mktemp("hub")

    def folder(family: str) -> Path:
        if not (root / family).exists():
            exported(family, root / family)
        return root / family

    return folder


@pytest.fixture
def check() -> Check:
    def checked(*arguments: Any) -> Checked:
        result = invoke("check", *arguments, "--json", "-")
        assert result.exception is None or isinstance(result.exception, SystemExit)
        reports = json.loads(result.stdout or "[]")
        return Checked(result.exit_code, reports[-1] if reports else {}, result.stderr)

    return checked
