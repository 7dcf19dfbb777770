"""No test has a typed tolerance: budgets are measured by an oracle."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.looping import for_each

from transparity_conformance.diagnosis import thresholds

ROOT = Path(__file__).parents[2]
PACKAGES = [ROOT / "conformance/transparity_conformance" / name for name in ("catalogue", "diagnosis", "oracle")]
FILES = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "conformance/meta").rglob("test_*.py")])

COMPARING = {"approx", "allclose", "assert_allclose", "isclose", "assert_close", "assert_array_almost_equal"}
"""Functions with an argument for the tolerance, which has a default."""

ORDERINGS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
TOLERANCES = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol", "decimal"}
SMALL = 1e-3
"""A comparison with a smaller number counts as a tolerance."""

FIGURES = {"test_race.py", "test_benchmarks.py"}
"""Tests of times and their ratios, for which no oracle exists."""


def typed_tolerances(text: str) -> Iterator[int]:
    """Yield the lines of calls with a typed or a default tolerance, and of comparisons with a small number."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in COMPARING:
            given = [keyword.value for keyword in node.keywords if keyword.arg in TOLERANCES]
            if not given or any(map(_has_number, given)):
                yield node.lineno
        if isinstance(node, ast.Compare) and any(isinstance(op, ORDERINGS) for op in node.ops) and _has_small(node):
            yield node.lineno


def typed_fractions(text: str) -> Iterator[int]:
    """Yield the lines of comparisons with a typed number that is not an integer."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Compare) and any(isinstance(op, ORDERINGS) for op in node.ops):
            yield from [node.lineno] * any(not float(number).is_integer() for number in _numbers(node))


def _numbers(node: ast.AST) -> list[float]:
    found = (part.value for part in ast.walk(node) if isinstance(part, ast.Constant))
    return [value for value in found if isinstance(value, int | float)]


def _has_number(node: ast.AST) -> bool:
    return any(_numbers(node))


def _has_small(node: ast.AST) -> bool:
    return any(0 < number <= SMALL for number in _numbers(node))


@for_each("path", FILES)
def test_no_tolerance_is_typed_into_a_test(path: Path) -> None:
    if path.name not in FIGURES:
        assert list(typed_tolerances(path.read_text())) == []


@for_each("package", PACKAGES)
def test_no_tolerance_is_typed_into_a_judgment(package: Path) -> None:
    """Check a package of the checker; its thresholds belong into `oracle.budgets` and `diagnosis.thresholds`."""
    files = {path: path.read_text() for path in package.rglob("*.py")}
    found = {path.name: [*typed_tolerances(text), *typed_fractions(text)] for path, text in files.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_threshold_says_what_it_was_measured_on() -> None:
    tables = [value if isinstance(value, dict) else {"": value} for value in vars(thresholds).values()]
    every = [each for table in tables for each in table.values() if isinstance(each, thresholds.Threshold)]
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


@for_each(
    "line", ["np.testing.assert_allclose(a, b, rtol=0, atol=oracle.budget('logits', 'float32'))", "assert share <= 1"]
)
def test_a_budget_is_no_typed_tolerance(line: str) -> None:
    assert list(typed_tolerances(line)) == []
