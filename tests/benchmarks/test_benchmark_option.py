"""Only `pytest --benchmark` runs benchmarks, and tests with real weights run only if their folder is named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKPOINTS = "tests/checkpoints"
FOLDERS = ("benchmarks", "conformance", "tests", CHECKPOINTS)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Write a project with this project's conftest and settings, one benchmark, and one test of each kind."""
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks/conftest.py", tmp_path / "benchmarks")
    (tmp_path / "benchmarks/plugin.py").write_text("import pytest_benchmark\n")
    for folder in FOLDERS:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"test_in_{Path(folder).name}.py").write_text("def test_it() -> None:\n    pass\n")
    return tmp_path


def run(project: Path, *arguments: str, where: str = ".") -> tuple[set[str], str]:
    """Run pytest; return the folders whose tests passed, and the output."""
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", "-p", "no:transparity", *arguments]
    process = subprocess.run(command, cwd=project / where, capture_output=True, text=True, check=False)
    said = process.stdout + process.stderr
    return {folder for folder in FOLDERS if f"test_in_{Path(folder).name}.py::test_it" in said}, said


def test_without_it_benchmarks_are_not_collected(project: Path) -> None:
    assert run(project)[0] == {"conformance", "tests"}


def test_with_it_benchmarks_alone_are_collected(project: Path) -> None:
    assert run(project, "--benchmark")[0] == {"benchmarks"}


def test_real_weights_are_tried_where_they_are_named(project: Path) -> None:
    assert run(project, "conformance", "tests")[0] == {"conformance", "tests"}
    assert run(project, CHECKPOINTS)[0] == {CHECKPOINTS}
    assert run(project, f"{CHECKPOINTS}/test_in_checkpoints.py::test_it")[0] == {CHECKPOINTS}
    assert run(project, "test_in_checkpoints.py", where=CHECKPOINTS)[0] == {CHECKPOINTS}
    assert run(project, CHECKPOINTS, "-n", "1")[0] == {CHECKPOINTS}


def test_without_pytest_benchmark_one_sentence_says_what_to_install(project: Path) -> None:
    (project / "benchmarks/plugin.py").write_text("raise ModuleNotFoundError('pytest_benchmark')\n")
    passed, said = run(project, "--benchmark", "-p", "no:benchmark")
    assert passed == set()
    assert said.strip() == 'ERROR: --benchmark needs pytest-benchmark: python -m pip install ".[benchmark]"'
