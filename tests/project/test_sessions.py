"""Test that every test runs in a session: `nox -s quick`, `tests` or `nightly` by its duration, or a session of its
own. `python -m tests.project.test_sessions` updates tests/durations.json and tests/deferred.json for moved or removed
tests."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import conftest
import pytest
from tests.looping import for_each

from meta.planting.planted import PLANTS
from meta.planting.test_plants import COMPILED
from transparity_conformance.suite.claims import all_claims

ROOT = Path(__file__).parents[2]
DURATIONS: dict[str, dict[str, float]] = json.loads(conftest.DURATIONS.read_text())
DEFERRED: dict[str, dict[str, float]] = json.loads(conftest.DEFERRED.read_text())

NIGHTLY = ("conformance", "tests")

OF_THEIR_OWN = {"benchmarks": "benchmarks", "tests/checkpoints": "checkpoints", "examples/checks": "examples"}
"""Folders whose tests run in another session. Benchmarks need an idle machine, and checkpoints need real weights. The
examples are run by `tests/project/test_textbook.py`."""

NEVER_QUICK = {"conformance/meta/fitting": "a random configuration takes most of a second"}
"""Folders without a quick test, with the reason."""


def files_of_tests() -> list[Path]:
    found = (path.relative_to(ROOT) for path in ROOT.rglob("test_*.py"))
    return [path for path in found if not {"build", ".nox", ".venv"} & set(path.parts)]


def test_every_file_of_tests_is_in_a_session() -> None:
    files = files_of_tests()
    assert files
    outside = [path for path in files if path.parts[0] not in NIGHTLY]
    assert [str(path) for path in outside if not str(path).startswith(tuple(OF_THEIR_OWN))] == []
    noxfile = (ROOT / "noxfile.py").read_text()
    assert all(f"\ndef {session}(" in noxfile for session in (*OF_THEIR_OWN.values(), "quick", "tests", "nightly"))


def names_of(path: Path) -> set[str]:
    """Return the names of a file's tests; for test_claims.py, also the names of the claims."""
    defined = set(re.findall(r"(?m)^def (test_\w+)", path.read_text()))
    return defined | set(all_claims()) if path.name == "test_claims.py" else defined


def gone(recorded: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    known = {file: names_of(ROOT / file) if (ROOT / file).exists() else set() for file in recorded}
    lost = {
        file: [name for name in tests if not {name, name.partition("-")[0], name.partition("[")[0]} & known[file]]
        for file, tests in recorded.items()
    }
    return {file: names for file, names in lost.items() if names}


def test_what_was_recorded_still_exists() -> None:
    assert gone(DURATIONS) == gone(DEFERRED) == {}, "run python -m tests.project.test_sessions"


def test_every_folder_has_a_quick_test() -> None:
    (limit,) = re.findall(r"(?m)^QUICK, MOST, LONGEST = ([\d.]+),", (ROOT / "conftest.py").read_text())
    folders = {str(path.parent) for path in files_of_tests() if path.parts[0] in NIGHTLY} - set(OF_THEIR_OWN)
    quick = {str(Path(file).parent) for file, tests in DURATIONS.items() if min(tests.values()) <= float(limit)}
    assert sorted(folders - quick) == sorted(NEVER_QUICK)


def test_shorter_claims_catch_the_planted_faults_of_deferred_claims() -> None:
    quick = {name for name, claim in all_claims().items() if claim.quick} - {*conftest.BY_OTHERS}
    planted = [plant for plant in PLANTS if plant.column == COMPILED and {*conftest.BY_OTHERS} & {*plant.caught_by}]
    assert {name for plant in planted for name in plant.caught_by} >= {*conftest.BY_OTHERS}
    assert [str(plant) for plant in planted if not quick & {*plant.caught_by}] == []


def test_what_is_deferred_in_a_precision_is_claimed_in_float32() -> None:
    seconds = next(tests for file, tests in DURATIONS.items() if file.endswith("suite/test_claims.py"))
    deferred = {name for claims in conftest.IN_FLOAT32.values() for name in claims}
    claimed = {name for name in deferred if "float32" in all_claims()[name].quick}
    claimed |= {name for name in deferred if seconds[f"{name}-flax-float32-jit"] <= conftest.LONGEST}
    assert deferred == claimed


def mend() -> None:
    """Remove deleted tests from durations.json and deferred.json, and list moved tests under their new file."""
    places: dict[str, list[str]] = {}
    for path in files_of_tests():
        for name in names_of(ROOT / path):
            places.setdefault(name, []).append(str(path))
    for recorded in (DURATIONS, DEFERRED):
        for file, names in gone(recorded).items():
            for name in names:
                seconds = recorded[file].pop(name)
                if len(now := places.get(name.partition("[")[0], [])) == 1:
                    recorded.setdefault(now[0], {}).setdefault(name, seconds)
    for path, recorded in ((conftest.DURATIONS, DURATIONS), (conftest.DEFERRED, DEFERRED)):
        conftest.write_seconds(path, {file: tests for file, tests in recorded.items() if tests})


def test_every_case_is_tried_and_each_that_fails_is_named(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    @for_each("number", [1, 2, 3, 4])
    @for_each("text", ["a", "b"])
    def odd(number: int, text: str, tmp_path: Path) -> None:
        seen.append((number, text))
        assert list(tmp_path.iterdir()) == [], "a folder of its own"
        assert number % 2, "even"

    with pytest.raises(AssertionError, match=r"(?s)^2 of 4 cases:.number '2': .*text 'b'.*number '4': ") as failed:
        odd(tmp_path=tmp_path)
    assert "number '1'" not in str(failed.value)
    assert len(seen) == 8


def test_no_cases_are_an_error() -> None:
    with pytest.raises(AssertionError, match="there are no cases"):
        for_each("number", [])


if __name__ == "__main__":
    mend()
