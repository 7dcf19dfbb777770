"""The home page shows a port and the implementation that it departs from, as the checker finds them."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs.site import kept
from docs.site.pages import ROOT
from docs.site.side_by_side import home


def test_both_lines_are_marked_with_three_around_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(home, "kept", lambda name, inputs, make: kept.kept(name, inputs, make, tmp_path))
    text = home.answer()
    for name in ("mine.py", "theirs.py"):
        assert f'title="{name}" linenums="13" hl_lines="4"' in text
    assert "departs from theirs.py:16" in text
    assert str(tmp_path) not in text


def test_the_home_page_has_the_heading_that_the_answer_comes_before() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count(home.BEFORE) == 1
