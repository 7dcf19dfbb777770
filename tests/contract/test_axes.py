"""The shapes in all three columns use the same dimension names."""

from __future__ import annotations

import ast
from pathlib import Path

import jaxtyping
from tests.looping import for_each

from transparity.axes import LEGEND

ROOT = Path(__file__).parents[2]
COLUMNS = ["reference/transparity_numpy", "backends/transparity_pytorch", "backends/transparity_flax"]


def words(source: str) -> set[str]:
    """Return every dimension name in `Float[Array, "batch length"]` and similar types."""
    dimensions: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Subscript(value=ast.Name(id=kind), slice=ast.Tuple(elts=[_, ast.Constant(value=str(shape))])):
                dimensions |= {word.lstrip("*#") for word in shape.split()} if hasattr(jaxtyping, kind) else set()
    return {word for word in dimensions if not word.isdigit()}


def words_of_column(column: str) -> set[str]:
    return set().union(*(words(file.read_text()) for file in (ROOT / column).rglob("*.py")))


@for_each("column", COLUMNS)
def test_every_dimension_is_in_the_legend(column: str) -> None:
    found = words_of_column(column)
    assert "embed_dim" in found, "no shapes were found"
    assert found <= set(LEGEND)


def test_the_legend_has_no_word_that_no_shape_uses() -> None:
    assert set(LEGEND) <= set().union(*map(words_of_column, COLUMNS))
