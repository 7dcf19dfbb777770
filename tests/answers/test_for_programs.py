"""A program reads the answer as JSON from standard output, and text without colours from standard error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

PORT = """
from transparity_numpy.transformer import transformer
def build(config, parameters):
    return lambda **inputs: transformer(config, parameters, **inputs)
"""


def run(*arguments: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    options = ("--preset", "notes-lm", "--logits-only", *arguments)
    (folder / "port.py").write_text(PORT)
    command = [sys.executable, "-m", "transparity_conformance", "check", "port.py:build", *options]
    environment = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    return subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True, check=False)


def test_standard_output_is_json_alone_and_nothing_is_coloured(tmp_path: Path) -> None:
    ended = run("--json", "-", folder=tmp_path, TERM="xterm-256color")
    (report,) = json.loads(ended.stdout)
    assert (ended.returncode, report["verdict"]) == (0, "agrees")
    assert "AGREES" in ended.stderr
    assert "\x1b" not in ended.stdout + ended.stderr


def test_an_error_leaves_standard_output_empty(tmp_path: Path) -> None:
    ended = run("--json", "-", "--config", "missing.json", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "There is no file missing.json.\n"
