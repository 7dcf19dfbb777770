"""Every test is in a session: `nox -s quick`, `tests` or `nightly`, by what was measured of it, or one of its own."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from transparity_conformance.suite.claims import all_claims

ROOT = Path(__file__).parents[2]
DURATIONS: dict[str, dict[str, float]] = json.loads((ROOT / "tests/durations.json").read_text())

NIGHTLY = ("conformance", "tests")
"""What `nox -s nightly` runs whole."""

OF_THEIR_OWN = {"benchmarks": "benchmarks", "tests/checkpoints": "checkpoints", "examples/checks": "examples"}
"""Folders of tests that another session runs: the first needs an idle machine, the second real weights, and the third
is an example of a test, which `tests/project/test_example_checks.py` runs."""

NEVER_QUICK: dict[str, str] = {}
"""Folders of tests without a quick one, with the reason."""


def test_files() -> list[Path]:
    found = (path.relative_to(ROOT) for path in ROOT.rglob("test_*.py"))
    return [path for path in found if not {"build", ".nox", ".venv"} & set(path.parts)]


def test_every_file_of_tests_is_in_a_session() -> None:
    files = test_files()
    assert files
    outside = [path for path in files if path.parts[0] not in NIGHTLY]
    assert [str(path) for path in outside if not str(path).startswith(tuple(OF_THEIR_OWN))] == []
    noxfile = (ROOT / "noxfile.py").read_text()
    assert all(f"\ndef {session}(" in noxfile for session in (*OF_THEIR_OWN.values(), "quick", "tests", "nightly"))


def names_of(path: Path) -> set[str]:
    """The names of the tests in a file; of claims about subjects, those of the claims."""
    defined = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    return defined | set(all_claims()) if path.name == "test_claims.py" else defined


def test_what_was_measured_still_exists() -> None:
    gone = [file for file in DURATIONS if not (ROOT / file).exists()]
    assert gone == [], "take them out of tests/durations.json"
    for file, tests in DURATIONS.items():
        known = names_of(ROOT / file)
        assert [name for name in tests if name.partition("-")[0] not in known and name not in known] == [], file


def test_every_folder_has_a_quick_test(pytestconfig: pytest.Config) -> None:
    import conftest

    folders = {str(path.parent) for path in test_files() if path.parts[0] in NIGHTLY} - set(OF_THEIR_OWN)
    quick = {str(Path(file).parent) for file, tests in DURATIONS.items() if min(tests.values()) <= conftest.QUICK}
    assert sorted(folders - quick) == sorted(NEVER_QUICK)
