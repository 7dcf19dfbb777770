"""The pages that are written by hand, as the site has them: where each goes, and where its links lead."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
SOURCES = "https://github.com/transparity/transparity/blob/main"
"""What is not in the site is linked to where its repository is published."""

ELSEWHERE = {
    "README.md": "index.md",
    "docs/README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the repository whose place in the site is not that in docs/."""

FENCED = re.compile(r"(?ms)^( *)(```|~~~).*?^\1\2$|`[^`\n]+`")
LINK = re.compile(r"(\]\()([^)\s#]+)?(#[^)\s]*)?(\))")


def written_pages() -> dict[str, str]:
    """Return the page of the site for every Markdown file that it shows; both by their paths."""
    found = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
    return ELSEWHERE | {path: path.removeprefix("docs/") for path in found if path not in ELSEWHERE}


def linked_files(path: str) -> set[str]:
    """Return the files, such as pictures, that the page at `path` shows or links to in docs/ and benchmarks/."""
    targets = (_resolved(path, target) for target in _targets((ROOT / path).read_text(encoding="utf-8")))
    return {target for target in targets if target and _is_asset(target)}


def site_text(path: str, pages: dict[str, str]) -> str:
    """Return the Markdown file at `path` with links that lead to the same places from the site.

    Args:
        path: Of the file, from the root of the repository.
        pages: The site's page for every file that it shows.

    Raises:
        FileNotFoundError: A link leads nowhere.
    """
    text = (ROOT / path).read_text(encoding="utf-8")
    parts, begin = [], 0
    for code in FENCED.finditer(text):
        parts += [_relinked(text[begin : code.start()], path, pages), code[0]]
        begin = code.end()
    return "".join([*parts, _relinked(text[begin:], path, pages)])


def site_path(target: str, pages: dict[str, str]) -> str | None:
    """Return where the site has a file of the repository; None if it has not."""
    return pages.get(target) or (target.removeprefix("docs/") if _is_asset(target) else None)


def _targets(text: str) -> list[str]:
    """Return what the links of a page lead to, apart from its code."""
    return [match[2] for match in LINK.finditer(FENCED.sub("", text)) if match[2]]


def _relinked(prose: str, path: str, pages: dict[str, str]) -> str:
    def link(match: re.Match[str]) -> str:
        target = _resolved(path, match[2]) if match[2] else None
        if target is None:
            return match[0]
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{path} links to {match[2]}, which does not exist; correct the link.")
        place, here = site_path(target, pages), str(PurePosixPath(pages[path]).parent)
        leads = f"{SOURCES}/{target}" if place is None else os.path.relpath(place, here)
        return f"{match[1]}{leads}{match[3] or ''}{match[4]}"

    return LINK.sub(link, prose)


def _resolved(path: str, target: str) -> str | None:
    """Return the path that a link of the page at `path` means; None for another host's."""
    if re.match(r"[a-z]+:", target):
        return None
    return os.path.normpath(PurePosixPath(path).parent / target)


def _is_asset(target: str) -> bool:
    folders = ("docs/", "benchmarks/results/")
    return target.startswith(folders) and Path(target).suffix in (".svg", ".png", ".json")
