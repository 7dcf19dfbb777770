import ast
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from meta.against.mutants import RIGHT, WRONG, mutants, original, twins
from meta.against.rewrites import by_pattern


def rewritten(text: str, rows: str) -> list[str]:
    return [ast.unparse(new) for _, new in by_pattern(ast.parse(text, mode="eval").body, rows)]


def test_rows_rewrite_what_they_describe() -> None:
    assert rewritten("a * b", "X * Y -> X | Y") == ["a", "b"]
    assert rewritten("a * 0.5", "X * N -> X") == ["a"]
    assert rewritten("a * b", "X * N -> X") == []
    assert rewritten("torch.cat((a, b), dim=1)", "torch.cat((A, A), ...) -> A") == []
    assert rewritten("f(a, 2, c=3)", "P(X, ...) -> P(P(X, ...), ...)") == ["f(f(a, 2, c=3), 2, c=3)"]
    assert rewritten("a.mean(-1, keepdim=True)", "A.mean(-1, ...) -> A.mean(1, ...)") == ["a.mean(1, keepdim=True)"]


def test_mutants_differ_and_twins_agree(tmp_path: Path) -> None:
    """Check that a mutant changes one line or swaps two lines, and changes the output."""
    family = original("olmo3", tmp_path)
    for mutant in mutants(family, 6, seed=0):
        found = family.differences(mutant.text)
        assert found is not None and any(error > WRONG for error in found.values())
        lines = zip(family.text.splitlines(), mutant.text.splitlines(), strict=True)
        assert sum(old != new for old, new in lines) == (2 if mutant.kind == "exchanged" else 1)
    for twin in twins(family, 2, seed=0):
        assert twin.text != family.text
        assert max((family.differences(twin.text) or {"": 1.0}).values()) < RIGHT
