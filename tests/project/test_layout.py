import ast
import functools
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import pytest
from tests.helpers import run_python
from tests.looping import for_each

from transparity_conformance.diagnosis import thresholds
from transparity_conformance.oracle import budgets

FRAMEWORKS = {"torch", "jax", "flax"}


def imported_by(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*(name for name in {FRAMEWORKS} if name in sys.modules))"
    process = run_python("-c", script)
    assert process.returncode == 0, process.stderr
    return set(process.stdout.split())


FORWARD = """from transparity import initialize_parameters, preset
from transparity_numpy.port import build
config = preset('notes-lm').resized()
build(config, initialize_parameters(config))(tokens=[[1, 2, 3]])"""

WITHOUT = ("", "_numpy.port", "_numpy.harness", "_pytorch", "_flax", "_conformance", "_conformance.suite.plugin")


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        *((f"import transparity{name}", set()) for name in (*WITHOUT, "_conformance.checkpoints.importing")),
        (FORWARD, set()),
        *((f"import transparity_pytorch.{name}", {"torch"}) for name in ("port", "harness")),
        *((f"import transparity_flax.{name}", {"jax", "flax"}) for name in ("port", "harness")),
    ],
)
def test_an_import_brings_no_framework_that_was_not_asked_for(statement: str, expected: set[str]) -> None:
    assert imported_by(statement) == expected


ROOT = Path(__file__).parents[2]
CODE = ("reference", "backends", "conformance", "benchmarks", "examples", "docs")
MOST_FILES, LONGEST = 12, 40

MOST_OF_CONFORMANCE, LEAST_MEDIAN = 353, 90
"""The largest permitted number of files in conformance/, and the smallest permitted median of their lengths."""

LISTS = {
    "conformance/transparity_conformance/suite/claims",
    "conformance/transparity_conformance/catalogue",
    "conformance/transparity_conformance/checkpoints/families",
}
"""Folders with one file per claim, kind of fault or family, which may have more than `MOST_FILES` files."""


@functools.cache
def python_files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [Path(name) for name in listed if (ROOT / name).is_file()]


def functions_of(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield the functions among a node's statements; a walk through all expressions takes seconds."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions_of(child)


def long_functions(text: str) -> list[str]:
    every = functions_of(ast.parse(text))
    return [node.name for node in every if (node.end_lineno or 0) - node.lineno + 1 > LONGEST]


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
    package = Path("conformance/transparity_conformance")
    lines = [len((ROOT / path).read_text().splitlines()) for path in python_files() if path.is_relative_to(package)]
    assert len(lines) <= MOST_OF_CONFORMANCE
    assert median(lines) >= LEAST_MEDIAN


PACKAGES = [ROOT / "conformance/transparity_conformance" / name for name in ("catalogue", "diagnosis", "oracle")]
FILES = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "conformance/meta").rglob("test_*.py")])

COMPARING = {"approx", "allclose", "assert_allclose", "isclose", "assert_close", "assert_array_almost_equal"}
"""Functions whose argument for the tolerance has a default."""

ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
TOLERANCES = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol", "decimal"}
SMALL = 1e-3
"""The limit below which a number in a comparison counts as a tolerance."""

FIGURES = {"test_race.py", "test_benchmarks.py"}
"""Tests of times and ratios of times, for which no oracle exists."""


def typed_tolerances(text: str) -> Iterator[int]:
    """Yield the lines of calls with a constant or default tolerance, and of comparisons with a small number."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in COMPARING:
            given = [keyword.value for keyword in node.keywords if keyword.arg in TOLERANCES]
            if not given or any(any(_numbers(each)) for each in given):
                yield node.lineno
        if isinstance(node, ast.Compare) and any(isinstance(op, ORDERINGS) for op in node.ops):
            yield from [node.lineno] * any(0 < number <= SMALL for number in _numbers(node))


def typed_fractions(text: str) -> Iterator[int]:
    """Yield the lines of comparisons with a constant that is not an integer."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ORDERINGS) for op in node.ops):
            yield from [node.lineno] * any(not float(number).is_integer() for number in _numbers(node))


def _numbers(node: ast.AST) -> list[float]:
    found = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return [value for value in found if isinstance(value, int | float)]


@for_each("path", FILES)
def test_no_tolerance_is_typed_into_a_test(path: Path) -> None:
    if path.name not in FIGURES:
        assert list(typed_tolerances(path.read_text())) == []


@for_each("package", PACKAGES)
def test_no_tolerance_is_typed_into_a_judgment(package: Path) -> None:
    """Only `oracle.budgets` and `diagnosis.thresholds` may define thresholds."""
    files = {path: path.read_text() for path in package.rglob("*.py")}
    found = {path.name: [*typed_tolerances(text), *typed_fractions(text)] for path, text in files.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_threshold_says_what_it_was_measured_on() -> None:
    tables = [
        value if isinstance(value, dict) else {"": value} for value in (vars(thresholds) | vars(budgets)).values()
    ]
    every = [each for table in tables for each in table.values() if isinstance(each, budgets.Threshold | budgets.Count)]
    assert every and all(any(map(str.isdigit, each.provenance)) for each in every)


@for_each(
    "line",
    [
        "np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)",
        "torch.testing.assert_close(a, b)",
        "assert a == pytest.approx(b, rel=100 * ROUNDING)",
        "assert a == pytest.approx(b)",
        "assert abs(a - b) < 1e-12",
        "assert a >= b - 1e-12",
    ],
)
def test_a_typed_tolerance_is_found(line: str) -> None:
    assert list(typed_tolerances(line)) == [1]
