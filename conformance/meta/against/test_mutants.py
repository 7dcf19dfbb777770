"""Test rewrites, and that mutants change the output of a model while twins do not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from meta.against.mutants import RIGHT, WRONG, mutants, original, twins
from meta.against.observing import Site, Value, key_of
from meta.against.rewrites import by_pattern

FLOAT, NUMBER = Value("float", (2, 3)), Value("number", (0.5,))


def rewritten(text: str, rows: str, **values: Value) -> list[str]:
    """Return the rewrites of an expression; names without an entry in `values` are tensors."""
    tree = ast.parse(text)
    seen = {key_of(node): values.get(ast.unparse(node), FLOAT) for node in ast.walk(tree) if isinstance(node, ast.expr)}
    site = Site(text, seen)
    statement = site.tree.body[0]
    assert isinstance(statement, ast.Expr)
    return [ast.unparse(new) for _, new in by_pattern(site, statement.value, rows)]


def test_rows_rewrite_what_they_describe() -> None:
    assert rewritten("a * b", "X * Y -> X | Y") == ["a", "b"]
    assert rewritten("a * b", "X * N -> X", b=NUMBER) == ["a"]
    assert rewritten("a * b", "X * N -> X") == []
    assert rewritten("torch.cat((a, b), dim=1)", "torch.cat((A, A), ...) -> A") == []
    assert rewritten("f(a, 2, c=3)", "P(X, ...) -> P(P(X, ...), ...)") == ["f(f(a, 2, c=3), 2, c=3)"]
    assert rewritten("a.mean(-1, keepdim=True)", "A.mean(-1, ...) -> A.mean(1, ...)") == ["a.mean(1, keepdim=True)"]


def test_mutants_differ_and_twins_agree(tmp_path: Path) -> None:
    """Check that a mutant changes one line or swaps two lines, and changes the output on the inputs that it names."""
    family = original("olmo3", tmp_path)
    for mutant in mutants(family, 6, seed=0):
        found = family.differences(mutant.text)
        assert found is not None and mutant.uses and all(found[use] > WRONG for use in mutant.uses)
        lines = zip(family.text.splitlines(), mutant.text.splitlines(), strict=True)
        assert sum(old != new for old, new in lines) == (2 if mutant.kind == "exchanged" else 1)
    for twin in twins(family, 2, seed=0):
        assert twin.text != family.text
        assert max((family.differences(twin.text) or {"": 1.0}).values()) < RIGHT
