"""Write the site's pages into a folder, have them built, and hold the result to `checked`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from docs.site.causes import runs, section
from docs.site.checked import wrongs
from docs.site.columns import Columns, column_pages, plain_pages
from docs.site.pages import ROOT, linked_files, site_path, site_text, written_pages
from docs.site.probe import agreements, watched

HERE = Path(__file__).parent
CONFIGURATION = HERE / "zensical.toml"
BUILT = ROOT / "build/site"


def write_pages(into: Path) -> None:
    """Write every page and what the pages show into the folder `into`, which is emptied first."""
    shutil.rmtree(into, ignore_errors=True)
    pages = written_pages()
    texts = {page: site_text(path, pages) for path, page in pages.items()}
    for page, text in texts.items():
        _write(into / page, text)
    for asset in sorted(set().union(*map(linked_files, pages))):
        place = into / (site_path(asset, pages) or asset)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / asset, place)
    for page, text in generated_pages().items():
        _write(into / page, text)
    _write(into / "assets/site.css", (HERE / "site.css").read_text(encoding="utf-8"))


def generated_pages() -> dict[str, str]:
    """Return the pages that are made from sources and runs, by name."""
    return column_pages(Columns(watched(), agreements())) | _causes()


def _causes() -> dict[str, str]:
    """Return the pages of causes that a run shows, with the run."""
    pages, found = written_pages(), {}
    for name, shown in runs().items():
        page = f"causes/{name}.md"
        text, _, last = site_text(f"docs/{page}", pages).rpartition("[All faults]")
        found[page] = f"{text}{section(shown)}\n[All faults]{last}"
    return found


def build(into: Path = BUILT) -> Path:
    """Build the site and return the folder with its index.html.

    Raises:
        SystemExit: A page cannot be built, a link is broken, or the site asks something of another host.
    """
    write_pages(into / "pages")
    shutil.copyfile(CONFIGURATION, into / "zensical.toml")
    shutil.rmtree(into / "html", ignore_errors=True)
    zensical(into, "build", "--strict", "--clean")
    for page, text in plain_pages().items():
        _write(into / "pages" / page, text)
    add_markdown(into / "pages", into / "html")
    address = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]["site_url"]
    if wrong := wrongs(into / "html", address):
        sys.exit("\n".join(wrong))
    return into / "html"


def zensical(folder: Path, *arguments: str) -> None:
    """Run Zensical on a folder with pages; end with its status if it fails."""
    command = [sys.executable, "-m", "zensical", *arguments, "--config-file", str(folder / "zensical.toml")]
    ended = subprocess.run(command, cwd=folder, check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def add_markdown(pages: Path, html: Path) -> None:
    """Put the Markdown of each page beside it, for programs that read: `checking/index.md` for `checking/`."""
    for page in sorted(pages.rglob("*.md")):
        name = page.relative_to(pages)
        place = name if name.stem == "index" else name.with_suffix("") / "index.md"
        shutil.copyfile(page, html / place)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
