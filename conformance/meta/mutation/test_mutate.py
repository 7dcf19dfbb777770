import pytest

from meta.mutation.equivalents import Equivalent, difference_made, equivalents, mutants_of
from meta.mutation.mutants import mutants

COLUMNS = ("transparity_pytorch", "transparity_flax", "transparity_numpy")
EVERY = 32
"""One of this many entries of `equivalents.toml` is tested here; `nox -s equivalents` tests all entries."""


@pytest.mark.parametrize("column", COLUMNS)
def test_an_entry_is_a_line_that_mutation_makes(column: str) -> None:
    entries = [entry for entry in equivalents() if entry.column == column]
    assert entries and all(entry.why for entry in entries)
    assert [entry for entry in entries if not mutants_of(entry)] == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("entry", equivalents()[::EVERY], ids=str)
def test_an_entry_computes_the_same(entry: Equivalent) -> None:
    assert difference_made(entry) == ""


def test_a_line_that_computes_something_else_is_no_entry() -> None:
    """Use a line that inverts a condition. Most presets then decode without a cache, which changes nothing. Only
    `walkthrough`, whose `prefixes_agree` is false, decodes with a cache, which is wrong."""
    line = "if +config.prefixes_agree or longest > config.max_length:"
    entry = Equivalent("transparity_numpy", "decoding.steps", line, "")
    assert difference_made(entry).startswith("walkthrough: tokens")


def test_a_mutant_is_one_line_made_wrong() -> None:
    made = [(mutant.line, mutant.becomes) for mutant in mutants("file", "def f(x: int) -> int:\n    return x + 1\n")]
    assert sorted(set(made)) == [(2, "return x"), (2, "return x + 2"), (2, "return x - 1")]


def test_what_means_the_same_is_no_mutant() -> None:
    assert list(mutants("file", "def f(x, y):\n    z: int\n    return clip(x, y)\n")) == []
