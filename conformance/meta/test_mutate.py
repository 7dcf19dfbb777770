"""Mutation testing itself: what it leaves out, and why."""

from __future__ import annotations

import pytest

from meta.mutate import equivalents, mutants
from meta.planting import column_path

COLUMNS = ("transparity_pytorch", "transparity_flax", "transparity_numpy")


@pytest.mark.parametrize("column", COLUMNS)
def test_what_is_said_to_compute_the_same_is_a_line_that_mutation_makes(column: str) -> None:
    same = equivalents(column)
    files = sorted({file for file, _ in same})
    assert files and all(same.values())
    texts = {file: (column_path(column) / f"{file}.py").read_text() for file in files}
    made = {(file, mutant.becomes) for file, text in texts.items() for mutant in mutants(file, text)}
    assert set(same) - made == set()


def test_a_mutant_is_one_line_made_wrong() -> None:
    made = [(mutant.line, mutant.becomes) for mutant in mutants("file", "def f(x: int) -> int:\n    return x + 1\n")]
    assert sorted(set(made)) == [(2, "return x"), (2, "return x + 2"), (2, "return x - 1")]


def test_what_means_the_same_is_no_mutant() -> None:
    assert list(mutants("file", "def f(x, y):\n    z: int\n    return clip(x, y)\n")) == []
