"""Test `for_each`: it runs all cases and names each that fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.looping import for_each


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
