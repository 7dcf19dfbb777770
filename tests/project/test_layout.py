"""The sizes of folders, files and functions, and the modules that an import brings."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from tests.looping import for_each

FRAMEWORKS = {"torch", "jax", "flax"}


def imported_by(statement: str) -> set[str]:
    """Return the frameworks that `statement` imports in a new process."""
    script = f"import sys\n{statement}\nprint(*(name for name in {FRAMEWORKS} if name in sys.modules))"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(process.stdout.split())


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("import transparity", set()),
        ("import transparity_numpy.port", set()),
        ("import transparity_pytorch", set()),
        ("import transparity_flax", set()),
        ("import transparity_conformance", set()),
        ("import transparity_conformance.suite.plugin", set()),
        ("import transparity_conformance.checkpoints.importing", set()),
        ("import transparity_pytorch.port", {"torch"}),
        ("import transparity_flax.port", {"jax", "flax"}),
        ("import transparity_numpy.harness", set()),
        ("import transparity_pytorch.harness", {"torch"}),
        ("import transparity_flax.harness", {"jax", "flax"}),
    ],
)
def test_an_import_brings_no_framework_that_was_not_asked_for(statement: str, expected: set[str]) -> None:
    assert imported_by(statement) == expected


def test_a_numpy_forward_pass_brings_no_framework() -> None:
    forward = (
        "from transparity import initialize_parameters, preset\n"
        "from transparity_numpy.port import build\n"
        "config = preset('notes-lm').resized()\n"
        "build(config, initialize_parameters(config))(tokens=[[1, 2, 3]])"
    )
    assert imported_by(forward) == set()


ROOT = Path(__file__).parents[2]
CODE = ("reference", "backends", "conformance", "benchmarks", "examples", "docs")
MOST_FILES, LONGEST = 12, 40

MOST_OF_CONFORMANCE, LEAST_MEDIAN = 353, 90
"""The largest number of files in conformance/, and the smallest median of their lines."""

LISTS = {
    "conformance/transparity_conformance/suite/claims",
    "conformance/transparity_conformance/catalogue",
    "conformance/transparity_conformance/checkpoints/families",
}
"""Folders with one file per list entry, which may have more files."""


def python_files() -> list[Path]:
    """Return every Python file in the project, as git lists them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in listed if (ROOT / name).is_file()]


def sizes(depth: int = 2) -> dict[str, list[int]]:
    """Return the number of lines of each file, by folder; a file counts for each folder that contains it."""
    found: dict[str, list[int]] = {}
    for path in python_files():
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        for length in range(1, min(depth, len(path.parts) - 1) + 1):
            found.setdefault("/".join(path.parts[:length]), []).append(lines)
    return found


def long_functions(text: str) -> list[str]:
    """Return the names of functions that have more lines than a screen."""
    functions = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if (node.end_lineno or 0) - node.lineno + 1 > LONGEST]


def test_no_folder_has_more_files_than_one_can_name() -> None:
    counted = Counter(path.parent.as_posix() for path in python_files())
    assert counted, "no files were found"
    assert {folder: count for folder, count in counted.items() if count > MOST_FILES and folder not in LISTS} == {}


@for_each("folder", CODE)
def test_no_function_is_longer_than_a_screen(folder: str) -> None:
    paths = [path for path in python_files() if path.parts[0] == folder]
    assert paths, f"{folder} has no files"
    assert {path.as_posix(): names for path in paths if (names := long_functions((ROOT / path).read_text()))} == {}


def test_conformance_is_few_files_that_are_subjects() -> None:
    lines = sizes()["conformance/transparity_conformance"]
    assert len(lines) <= MOST_OF_CONFORMANCE
    assert median(lines) >= LEAST_MEDIAN


if __name__ == "__main__":
    for folder, lines in sorted(sizes(3).items()):
        sys.stdout.write(f"{folder:60} {sum(lines):7,} lines {len(lines):4} files, median {median(lines):g}\n")
