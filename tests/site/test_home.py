"""The home page shows a port next to the implementation that it differs from, with the checker's answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from docs import three_columns
from docs.site import build, kept
from docs.site.checked import HEAVIEST
from docs.site.pages import ROOT, site_text, written_pages
from docs.site.side_by_side import home


def test_both_lines_are_marked_with_three_around_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(home, "kept", lambda name, inputs, make: kept.kept(name, inputs, make, tmp_path))
    text = home.answer()
    for name in ("mine.py", "theirs.py"):
        assert f'title="{name}" linenums="13" hl_lines="4"' in text
    assert "departs from theirs.py:16" in text
    assert str(tmp_path) not in text


def test_the_forward_pass_is_small_and_its_model_spells_every_word_backwards() -> None:
    pages = build._forward()
    assert build.FRAME in pages["forward-pass.md"]
    assert "/*DATA*/" not in pages["assets/forward.html"]
    assert len(pages["assets/forward.html"].encode()) < HEAVIEST
    for run in json.loads((ROOT / "docs/forward.json").read_text(encoding="utf-8"))["runs"]:
        word, _, backwards = run["tokens"].partition(">")
        assert backwards == word[::-1]
        assert [best[0][0] for best in run["next"][len(word) :]] == [*backwards, "."]
        for weights in (head for layer in run["weights"] for head in layer):
            size = len(run["tokens"])
            sums = [sum(weights[q * (q + 1) // 2 : (q + 1) * (q + 2) // 2]) for q in range(size)]
            assert max(abs(each - 99) for each in sums) <= size / 2


def test_the_home_page_has_the_heading_that_the_answer_comes_before() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count(home.BEFORE) == 1


def test_the_picture_of_the_columns_is_text_on_the_home_page() -> None:
    text = site_text("README.md", written_pages())
    assert len(home.PICTURE.findall(text)) == 1
    for title, file in three_columns.COLUMNS.items():
        assert f'title="{title}"' in home.textbook()
        assert "query @ key.mT" in (ROOT / file).read_text(encoding="utf-8")
    assert home.textbook().count("query @ key.mT") == 3
