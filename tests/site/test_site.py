import re
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docs.site import noise, pages
from docs.site.build import llms_text, reference_pages
from docs.site.checked import HEAVIEST, wrongs
from docs.site.notebooks import SCRIPTS, page_of
from docs.site.pages import (
    CONFIGURATION,
    ROOT,
    SUBJECTS,
    column_page,
    linked_files,
    markdown_beside,
    site_text,
    within_items,
    written_pages,
)
from tests.looping import for_each

ADDRESS = "https://example.org/site/"


def in_navigation(entries: list[dict[str, Any]]) -> list[str]:
    found = [value for entry in entries for value in entry.values()]
    return [page for value in found for page in ([value] if isinstance(value, str) else in_navigation(value))]


def test_every_page_but_those_of_causes_is_in_the_navigation() -> None:
    listed = in_navigation(tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]["nav"])
    written = {page for page in written_pages().values() if not page.startswith("causes/")}
    generated = {*map(column_page, SUBJECTS), *map(page_of, SCRIPTS), *reference_pages()}
    assert sorted(listed) == sorted(written | generated)


def test_a_link_leads_to_the_same_place_from_the_site() -> None:
    text = site_text("README.md", written_pages())
    assert "](reading-guide.md)" in text
    assert "](columns/mixers-attention.md)" in site_text("docs/reading-guide.md", written_pages())
    assert "](LICENSE)" not in text and f"]({pages.SOURCES}/LICENSE)" in text
    assert "](../faults.md)" in site_text("docs/causes/norm-eps.md", written_pages())
    assert {"docs/three-columns.svg", "docs/answer.svg", "docs/logo.svg"} <= linked_files("README.md")


def test_a_numbered_list_continues_after_code_in_an_item() -> None:
    code = "```sh\n   x\n```\n"
    text = f"1. a\n\n{textwrap.indent(code, ' ' * 3)}\n   b\n\n{code}"
    assert within_items(text) == f"1. a\n\n{textwrap.indent(code, ' ' * 4)}\n    b\n\n{code}"


def test_a_link_that_leads_nowhere_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("`[code](no.md)` [page](no.md)", encoding="utf-8")
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"page\.md links to no\.md"):
        site_text("page.md", {"page.md": "page.md"})


def test_markdown_beside_a_page_links_to_markdown() -> None:
    text = "[a](normal.md#x) [b](exam.png) [c](https://a.b/c.md) `[d](no.md)` [e](#top)"
    beside = "[a](../normal/index.md#x) [b](../exam.png) [c](https://a.b/c.md) `[d](no.md)` [e](#top)"
    assert markdown_beside(text, "checking.md") == beside


def test_every_page_is_listed_for_programs(tmp_path: Path) -> None:
    (tmp_path / "causes/norm-eps").mkdir(parents=True)
    (tmp_path / "causes/norm-eps/index.md").touch()
    text = llms_text(tmp_path)
    assert text.startswith("# transparity\n\n> One transformer in NumPy, PyTorch and JAX")
    assert "- [Check a port](checking/index.md)" in text
    assert "- [norm-eps](causes/norm-eps/index.md)" in text


def test_every_cause_can_be_found_from_what_is_seen() -> None:
    tree = (ROOT / "docs/my-port-disagrees.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(causes/([\w-]+)\.md\)", tree))
    assert linked == {page.stem for page in (ROOT / "docs/causes").glob("*.md")}


def test_the_page_on_noise_has_its_tables() -> None:
    assert (ROOT / "docs" / noise.PAGE).read_text(encoding="utf-8").count(noise.PLACE) == 1
    first, *rest = [row for row in noise.tables().splitlines() if row.startswith("|")]
    assert first == "| layers, at 8 tokens | float64 | float32 | bfloat16 | float16 |"
    errors = [[float(cell) for cell in row.split("|")[2:-1]] for row in rest if re.match(r"\| \d", row)]
    assert len(errors) == len(noise.DEPTHS) + len(noise.LENGTHS)
    for double, single, brain, half in errors:
        assert 0 < double < single < half < brain


@for_each(
    ("html", "wrong"),
    [
        ('<a href="missing/">', "links to missing/, which does not exist"),
        ('<a href="#nothing">', "links to #nothing, but the page has no such heading"),
        ('<a href="other.html#nothing">', "links to other.html#nothing, but the page has no such heading"),
        ('<script src="https://cdn.example.com/x.js">', "from another host"),
        ('<link rel="preconnect" href="https://fonts.example.com">', "from another host"),
        ('<a href="" data-md-component="source">', "from another host"),
        ('<img src="picture.svg">', "pictures without alternative text: 1"),
        ("x" * (HEAVIEST + 1), "at most"),
    ],
)
def test_what_is_wrong_with_a_built_page_is_seen(html: str, wrong: str, tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text("<h1 id='top'>", encoding="utf-8")
    (tmp_path / "picture.svg").touch()
    (tmp_path / "index.html").write_text('<a href="other.html#top">', encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == []
    (tmp_path / "index.html").write_text(html, encoding="utf-8")
    assert any(wrong in sentence and sentence.startswith("index.html: ") for sentence in wrongs(tmp_path, ADDRESS))


def test_a_broken_link_in_markdown_is_seen(tmp_path: Path) -> None:
    (tmp_path / "llms.txt").write_text("[a](llms.txt) [b](https://example.org)", encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == []
    (tmp_path / "index.md").write_text("[a](no/index.md)", encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == ["index.md: links to no/index.md, which does not exist"]


def test_a_style_sheet_that_asks_another_host_is_seen(tmp_path: Path) -> None:
    (tmp_path / "own.css").write_text("a { background: url(picture.svg) } b { mask: url(data:x) }", encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == []
    (tmp_path / "fonts.css").write_text("@import 'https://fonts.example.com/a.css';", encoding="utf-8")
    assert wrongs(tmp_path, ADDRESS) == ["fonts.css: loads a file from another host"]
