"""The site: it has every page, its links are those of the repository, and what is wrong with a built site is seen."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docs.site import pages
from docs.site.build import CONFIGURATION
from docs.site.checked import HEAVIEST, wrongs
from docs.site.columns import SUBJECTS, page_name
from docs.site.pages import ROOT, linked_files, site_text, written_pages

ADDRESS = "https://example.org/site/"


def in_navigation(entries: list[dict[str, Any]]) -> list[str]:
    """Return the pages of a navigation, in order."""
    found = [value for entry in entries for value in entry.values()]
    return [page for value in found for page in ([value] if isinstance(value, str) else in_navigation(value))]


def test_every_page_but_those_of_causes_is_in_the_navigation() -> None:
    listed = in_navigation(tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]["nav"])
    written = {page for page in written_pages().values() if not page.startswith("causes/")}
    assert sorted(listed) == sorted(written | set(map(page_name, SUBJECTS)))


def test_a_link_leads_to_the_same_place_from_the_site() -> None:
    text = site_text("README.md", written_pages())
    assert "](families.md#a-ports-own-loader)" in text
    assert f"[attention.py]({pages.SOURCES}/reference/transparity_numpy/attention.py)" in text
    assert "](../faults.md)" in site_text("docs/causes/norm-eps.md", written_pages())
    assert "](index.md#check-a-port)" in site_text("docs/checking.md", written_pages())
    assert {"docs/three-columns.svg", "benchmarks/results/throughput-encoder-decoder.png"} <= linked_files("README.md")


def test_a_link_that_leads_nowhere_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("`[code](no.md)` [page](no.md)", encoding="utf-8")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"page\.md links to no\.md"):
        site_text("page.md", {"page.md": "page.md"})


def test_code_is_shown_as_it_is() -> None:
    def code(text: str) -> list[str]:
        return re.findall(r"(?ms)^ *```.*?^ *```$", text)

    for path, _ in zip(written_pages(), range(40), strict=False):
        assert code(site_text(path, written_pages())) == code((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("html", "wrong"),
    [
        ('<a href="missing/">', "links to missing/, which does not exist"),
        ('<a href="#nothing">', "links to #nothing, where there is no such heading"),
        ('<a href="other.html#nothing">', "links to other.html#nothing, where there is no such heading"),
        ('<script src="https://cdn.example.com/x.js">', "from another host"),
        ('<link rel="preconnect" href="https://fonts.example.com">', "from another host"),
        ('<a href="" data-md-component="source">', "from another host"),
        ('<img src="picture.svg">', "have no alternative text"),
        ("x" * (HEAVIEST + 1), "of at most"),
    ],
)
def test_what_is_wrong_with_a_built_page_is_seen(html: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<h1 id='top'>", encoding="utf-8")
    (tmp_path / "picture.svg").touch()
    (tmp_path / "index.html").write_text('<a href="other.html#top">', encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == []
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    assert any(wrong in sentence and sentence.startswith("index.html: ") for sentence in wrongs(tmp_path, ADDRESS))


def test_a_style_sheet_that_asks_another_host_is_seen(tmp_path: Path) -> None:
    (tmp_path / "own.css").write_text("a { background: url(picture.svg) } b { mask: url(data:x) }", encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == []
    (tmp_path / "fonts.css").write_text("@import 'https://fonts.example.com/a.css';", encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == ["fonts.css: loads a file from another host"]
