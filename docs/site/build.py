"""Build the site: write its pages into a folder, run Zensical on them, and check the result."""

import dataclasses
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from docs.site import documents, gallery, noise, notebooks
from docs.site.causes import sections
from docs.site.checked import wrongs
from docs.site.kept import kept
from docs.site.pages import (
    CONFIGURATION,
    PROJECT,
    ROOT,
    linked_files,
    markdown_beside,
    markdown_place,
    site_path,
    site_text,
    written_pages,
)
from docs.site.reference import api, command_line, model, schema
from docs.site.side_by_side import home
from docs.site.side_by_side.columns import Columns, column_pages, plain_pages
from docs.site.side_by_side.probe import Agreement, agreements, watched

HERE = Path(__file__).parent
BUILT = ROOT / "build/site"

WATCH = "[Watch a forward pass](forward-pass.md): a small model spells words backwards."
PLACE = "<!-- animation: docs/site/forward.html, in the site -->"
FRAME = """[Open only the animation](assets/forward.html) to share it.

<iframe class="forward" src="assets/forward.html" title="One forward pass" loading="lazy"></iframe>"""


def write_pages(into: Path) -> None:
    """Empty the folder `into`, and write every page and the files that pages show."""
    shutil.rmtree(into, ignore_errors=True)
    pages = written_pages()
    for page, text in {page: site_text(path, pages) for path, page in pages.items()}.items():
        _write(into / page, text)
    for asset in sorted(set().union(*map(linked_files, pages))):
        place = into / (site_path(asset, pages) or asset)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / asset, place)
    for page, text in generated_pages().items():
        _write(into / page, text)
    (into / "assets").mkdir(parents=True, exist_ok=True)
    for name in ("site.css", "site.js", "card.png"):
        shutil.copyfile(HERE / name, into / "assets" / name)


def generated_pages() -> dict[str, str]:
    parts: list[Callable[[], dict[str, str]]] = [_home, _forward, _causes, _gallery, _columns, _noise]
    parts += [notebooks.notebooks, *(partial(_document, name) for name in documents.DOCUMENTS), reference_pages]
    found: dict[str, str] = {}
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as processes:
        for pages in [processes.submit(part) for part in parts]:
            found |= pages.result()
    return found


def reference_pages() -> dict[str, str]:
    return {
        "reference/command-line.md": command_line.page(),
        "reference/report.md": schema.page(),
        **model.pages(),
        "reference/api.md": api.page(),
    }


def _home() -> dict[str, str]:
    text = home.PICTURE.sub(lambda picture: home.textbook(), site_text("README.md", written_pages()))
    text = home.INDEX.sub("", home.BADGE.sub("", text))
    return {"index.md": text.replace(home.BEFORE, f"{home.answer()}\n{home.BEFORE}\n\n{WATCH}", 1)}


def _forward() -> dict[str, str]:
    data = (ROOT / "docs/forward.json").read_text(encoding="utf-8")
    drawn = (HERE / "forward.html").read_text(encoding="utf-8").replace("/*DATA*/null", data)
    return {"forward-pass.md": _filled("forward-pass.md", PLACE, FRAME), "assets/forward.html": drawn}


def _columns() -> dict[str, str]:
    found = kept("agreements", _own("side_by_side/probe"), lambda: list(map(dataclasses.asdict, agreements().values())))
    near = {(each["model"], each["tap"]): Agreement(**each) for each in found}
    return column_pages(Columns(watched(), near))


def _gallery() -> dict[str, str]:
    diagnoses, reports = gallery.gallery()
    return {"gallery.md": _filled("gallery.md", gallery.PLACE, diagnoses), **reports}


def _noise() -> dict[str, str]:
    errors = kept("noise", _own("noise"), noise.tables)
    return {noise.PAGE: _filled(noise.PAGE, noise.PLACE, errors)}


def _document(name: str) -> dict[str, str]:
    page = f"documents/{name}.md"
    shown = kept(f"document-{name}", _own("documents", "pages"), partial(documents.section, name))
    return {page: _filled(page, documents.PLACE, shown)}


def _filled(page: str, place: str, text: str) -> str:
    return site_text(f"docs/{page}", written_pages()).replace(place, text)


def _causes() -> dict[str, str]:
    pages, found = written_pages(), {}
    for name, shown in kept("causes", _own("causes", "errors", "figures"), sections).items():
        page = f"causes/{name}.md"
        text, _, last = site_text(f"docs/{page}", pages).rpartition("[All faults]")
        found[page] = f"{text}{shown}\n[All faults]{last}"
    return found


def _own(*modules: str) -> list[bytes]:
    return [(HERE / f"{module}.py").read_bytes() for module in modules]


def build(into: Path = BUILT) -> Path:
    """Build the site and return the folder with its index.html.

    Raises:
        SystemExit: A page cannot be built, a link is broken, or the site loads a file from another host.
    """
    write_pages(into / "pages")
    configure(into)
    shutil.rmtree(into / "html", ignore_errors=True)
    zensical(into, "build", "--strict", "--clean")
    for page, text in plain_pages().items():
        _write(into / "pages" / page, text)
    # Write the Markdown of each page beside its HTML, for language models: `checking/index.md` for `checking/`.
    for path in sorted((into / "pages").rglob("*.md")):
        page = path.relative_to(into / "pages").as_posix()
        _write(into / "html" / markdown_place(page), markdown_beside(path.read_text(encoding="utf-8"), page))
    _write(into / "html/llms.txt", llms_text(into / "html"))
    if wrong := wrongs(into / "html", PROJECT["site_url"]):
        sys.exit("\n".join(wrong))
    return into / "html"


def configure(into: Path) -> None:
    shutil.copyfile(CONFIGURATION, into / "zensical.toml")
    (into / "theme").mkdir(exist_ok=True)
    shutil.copyfile(HERE / "main.html", into / "theme/main.html")


def zensical(folder: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "zensical", *arguments, "--config-file", str(folder / "zensical.toml")]
    ended = subprocess.run(command, cwd=folder, check=False)
    if ended.returncode:
        sys.exit(ended.returncode)


def llms_text(html: Path) -> str:
    """Return the text of llms.txt (llmstxt.org), which lists the title and the address of every page's Markdown."""
    parts = [f"# {PROJECT['site_name']}", f"> {PROJECT['site_description']}"]
    sections: list[dict[str, str | list[dict[str, str]]]] = PROJECT["nav"]
    for title, entries in (item for part in sections for item in part.items()):
        listed = [{title: entries}] if isinstance(entries, str) else entries
        lines = [f"- [{name}]({markdown_place(page)})" for entry in listed for name, page in entry.items()]
        parts.append(f"## {title}\n\n" + "\n".join(lines))
    causes = sorted((html / "causes").glob("*/index.md"))
    parts.append(
        "## Every cause\n\n" + "\n".join(f"- [{page.parent.name}]({page.relative_to(html)})" for page in causes)
    )
    return "\n\n".join(parts) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
