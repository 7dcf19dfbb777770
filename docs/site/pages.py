"""The pages that are written by hand, as the site has them: where each goes, and where its links lead."""

from __future__ import annotations

import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = "https://github.com/transparity/transparity/blob/main"
"""The published repository, for links to files that are not in the site."""

CONFIGURATION = Path(__file__).with_name("zensical.toml")
PROJECT: dict[str, Any] = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]

ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository whose place in the site is not that in docs/."""

INDEX = "docs/README.md"
"""The list of pages for readers of the repository; the site has its navigation."""

FENCED = re.compile(r"(?ms)^( *)(```|~~~).*?^\1\2$|`[^`\n]+`")
OF_FRAMEWORK = re.compile(r"(?ms)^\*\*(PyTorch|JAX|NumPy)\*\*\n\n(```.*?^```)$")
LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")

COLUMN = re.compile(r"reference/transparity_numpy/(.+)\.py")
"""A file of the specification, which the site shows beside the other columns'."""


def column_page(subject: str) -> str:
    """Return the page of a file that all three columns have."""
    return f"columns/{subject.replace('/', '-').replace('_', '-')}.md"


def subjects() -> dict[str, str]:
    """Return the files that all three columns have and the titles of their pages, in the navigation's order."""
    column = ROOT / "reference/transparity_numpy"
    files = [path.relative_to(column).with_suffix("").as_posix() for path in column.rglob("*.py")]
    by_page = {column_page(file): file for file in files}
    sections = [entries for section in PROJECT["nav"] for entries in section.values() if isinstance(entries, list)]
    named = ((page, title) for entries in sections for entry in entries for title, page in entry.items())
    return {by_page[page]: title for page, title in named if page in by_page}


SUBJECTS = subjects()


def written_pages() -> dict[str, str]:
    """Return the page of the site for every Markdown file that it shows; both by their paths."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ELSEWHERE | {path: path.removeprefix("docs/") for path in found if path not in (*ELSEWHERE, INDEX)}


def linked_files(path: str) -> set[str]:
    """Return the files, such as pictures, that the page at `path` shows or links to in docs/ and benchmarks/."""
    targets = (_resolved(path, target) for target in link_targets((ROOT / path).read_text(encoding="utf-8")))
    return {target for target in targets if target and _is_asset(target)}


def site_text(path: str, pages: dict[str, str]) -> str:
    """Return the Markdown file at `path` with links that lead to the same places from the site.

    Args:
        path: Of the file, from the root of the repository.
        pages: The site's page for every file that it shows.

    Raises:
        FileNotFoundError: A link leads nowhere.
    """
    here = str(PurePosixPath(pages[path]).parent)

    def change(written: str) -> str:
        target = _resolved(path, written)
        if target is None:
            return written
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{path} links to {written}, which does not exist; correct the link.")
        place = site_path(target, pages)
        return f"{SOURCES}/{target}" if place is None else os.path.relpath(place, here)

    return tabbed(relinked((ROOT / path).read_text(encoding="utf-8"), change))


def tabbed(text: str) -> str:
    """Return Markdown with each block of code below the name of a framework as a tab of that name."""
    return OF_FRAMEWORK.sub(lambda block: f'=== "{block[1]}"\n\n{textwrap.indent(block[2], " " * 4)}', text)


def markdown_place(page: str) -> str:
    """Return where the Markdown of a page is in the built site: `checking/index.md` beside `checking/index.html`."""
    return page if page == "index.md" else f"{page.removesuffix('.md')}/index.md"


def markdown_beside(text: str, page: str) -> str:
    """Return the text of a page with the links that it has where its Markdown is in the built site."""
    here = str(PurePosixPath(markdown_place(page)).parent)

    def change(written: str) -> str:
        target = _resolved(page, written)
        if target is None:
            return written
        return os.path.relpath(markdown_place(target) if target.endswith(".md") else target, here)

    return relinked(text, change)


def relinked(text: str, change: Callable[[str], str]) -> str:
    """Return Markdown with the target of each link changed, but for those in code and those within the page."""
    parts, begin = [], 0

    def link(match: re.Match[str]) -> str:
        return f"{match[1]}{change(match[2]) if match[2] else ''}{match[3] or ''}{match[4]}"

    for code in FENCED.finditer(text):
        parts += [LINK.sub(link, text[begin : code.start()]), code[0]]
        begin = code.end()
    return "".join([*parts, LINK.sub(link, text[begin:])])


def site_path(target: str, pages: dict[str, str]) -> str | None:
    """Return where the site has a file of the repository; None if it has not."""
    column = COLUMN.fullmatch(target)
    if column and column[1] in SUBJECTS:
        return column_page(column[1])
    return pages.get(target) or (target.removeprefix("docs/") if _is_asset(target) else None)


def link_targets(text: str) -> list[str]:
    """Return what the links of a page lead to, apart from its code."""
    return [match[2] for match in LINK.finditer(FENCED.sub("", text)) if match[2]]


def _resolved(path: str, target: str) -> str | None:
    """Return the path that a link of the page at `path` means; None for another host's."""
    if re.match(r"[a-z]+:", target):
        return None
    return os.path.normpath(PurePosixPath(path).parent / target)


def _is_asset(target: str) -> bool:
    folders = ("docs/", "benchmarks/results/")
    return target.startswith(folders) and Path(target).suffix in (".svg", ".png", ".json")


def cell(text: str) -> str:
    """Return a text in one line, without what would end the cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
