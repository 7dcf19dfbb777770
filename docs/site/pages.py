"""The hand-written pages: the paths of these pages in the site, and links that work in the site."""

import os
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[2]
SOURCES = "https://github.com/transparity/transparity/blob/main"
"""The address of the repository, for links to files that are not in the site."""

TITLES = {"numpy": "NumPy", "pytorch": "PyTorch", "flax": "JAX"}
"""The name of each column's framework, by backend."""

CONFIGURATION = Path(__file__).with_name("zensical.toml")
PROJECT: dict[str, Any] = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]

ELSEWHERE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""Pages whose path in the site differs from their path in docs/."""

INDEX = "docs/README.md"
"""The list of pages for readers of the repository, which the site replaces by its navigation."""

ROW = re.compile(r"(?m)^\|.*\|$")
WITHIN = re.compile(r"(?<=\d) (?=%|of \d+\))|(?<=\d of) (?=\d+\))")
"""A pattern for the spaces in `74 %` and `(1 of 6)`, at which lines in a table's cells must not break."""

FENCED = re.compile(r"(?ms)^( *)(```|~~~).*?^\1\2$|`[^`\n]+`")
OF_FRAMEWORK = re.compile(r"(?ms)^\*\*(PyTorch|JAX|NumPy)\*\*\n\n(```.*?^```)$")
LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")

COLUMN = re.compile(r"reference/transparity_numpy/(.+)\.py")
"""A pattern for files of the NumPy column, whose pages show all three columns."""


def column_page(subject: str) -> str:
    return f"columns/{subject.replace('/', '-').replace('_', '-')}.md"


def subjects() -> dict[str, str]:
    column = ROOT / "reference/transparity_numpy"
    files = [path.relative_to(column).with_suffix("").as_posix() for path in column.rglob("*.py")]
    by_page = {column_page(file): file for file in files}
    sections = [entries for section in PROJECT["nav"] for entries in section.values() if isinstance(entries, list)]
    named = ((page, title) for entries in sections for entry in entries for title, page in entry.items())
    return {by_page[page]: title for page, title in named if page in by_page}


SUBJECTS = subjects()


def written_pages() -> dict[str, str]:
    """Return the path in the site of every Markdown file that the site shows, by path in the repository."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ELSEWHERE | {path: path.removeprefix("docs/") for path in found if path not in (*ELSEWHERE, INDEX)}


def linked_files(path: str) -> set[str]:
    """Return the files in docs/ and benchmarks/ that a page shows or links to, such as pictures."""
    targets = (_resolved(path, target) for target in link_targets((ROOT / path).read_text(encoding="utf-8")))
    return {target for target in targets if target and _is_asset(target)}


def site_text(path: str, pages: dict[str, str]) -> str:
    """Return the Markdown file at `path` with links that work in the site.

    Args:
        path: The path of the file, relative to the root of the repository.
        pages: The path in the site for every file that the site shows.

    Raises:
        FileNotFoundError: The target of a link does not exist.
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

    text = (ROOT / path).read_text(encoding="utf-8")
    text = ROW.sub(lambda row: WITHIN.sub("\N{NO-BREAK SPACE}", row[0]), text)
    return tabbed(within_items(relinked(text, change)))


def within_items(text: str) -> str:
    """Return Markdown in which the parts of a list item are indented by four spaces; GitHub accepts three spaces."""
    parts = re.split(r"(?ms)^(```.*?^```$)", text)
    for index in range(0, len(parts), 2):
        blocks = re.sub(r"(?ms)^   ```.*?^   ```$", lambda block: textwrap.indent(block[0], " "), parts[index])
        parts[index] = re.sub(r"(?m)^   (?=\S)", " " * 4, blocks)
    return "".join(parts)


def tabbed(text: str) -> str:
    """Return Markdown in which a block of code below a framework's name is a tab with this name."""
    return OF_FRAMEWORK.sub(lambda block: f'=== "{block[1]}"\n\n{textwrap.indent(block[2], " " * 4)}', text)


def markdown_place(page: str) -> str:
    """Return the path of a page's Markdown in the built site: `checking/index.md` beside `checking/index.html`."""
    return page if page == "index.md" else f"{page.removesuffix('.md')}/index.md"


def markdown_beside(text: str, page: str) -> str:
    """Return a page's text with links that work from the address of its Markdown in the built site."""
    here = str(PurePosixPath(markdown_place(page)).parent)

    def change(written: str) -> str:
        target = _resolved(page, written)
        if target is None:
            return written
        return os.path.relpath(markdown_place(target) if target.endswith(".md") else target, here)

    return relinked(text, change)


def relinked(text: str, change: Callable[[str], str]) -> str:
    """Return Markdown with `change` applied to the targets of links, except links in code and within the page."""
    parts, begin = [], 0

    def link(match: re.Match[str]) -> str:
        return f"{match[1]}{change(match[2]) if match[2] else ''}{match[3] or ''}{match[4]}"

    for code in FENCED.finditer(text):
        parts += [LINK.sub(link, text[begin : code.start()]), code[0]]
        begin = code.end()
    return "".join([*parts, LINK.sub(link, text[begin:])])


def site_path(target: str, pages: dict[str, str]) -> str | None:
    column = COLUMN.fullmatch(target)
    if column and column[1] in SUBJECTS:
        return column_page(column[1])
    return pages.get(target) or (target.removeprefix("docs/") if _is_asset(target) else None)


def link_targets(text: str) -> list[str]:
    return [match[2] for match in LINK.finditer(FENCED.sub("", text)) if match[2]]


def _resolved(path: str, target: str) -> str | None:
    if re.match(r"[a-z]+:", target):
        return None
    return os.path.normpath(PurePosixPath(path).parent / target)


def _is_asset(target: str) -> bool:
    folders = ("docs/", "benchmarks/results/")
    return target.startswith(folders) and Path(target).suffix in (".svg", ".png", ".json")


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a Markdown table, whose cells are Markdown; the last `numbers` columns are aligned to the right."""
    lines = [heads, ["---"] * (len(heads) - numbers) + ["--:"] * numbers, *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def lines_around(name: str, text: str, line: int, around: int) -> str:
    """Return a block of code: a highlighted line of the file `name`, and the lines around it."""
    begin = max(0, line - 1 - around)
    code = "\n".join(text.splitlines()[begin : line + around]).rstrip("\n")
    return f'```python title="{name}" linenums="{begin + 1}" hl_lines="{line - begin}"\n{code}\n```'
