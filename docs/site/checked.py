"""Checks of a built site: links have targets, no file is loaded from another host, and no page is too large."""

import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from docs.site.pages import link_targets

HEAVIEST = 300_000
"""The largest size of a page, in bytes."""

LOADED = ("img", "script", "iframe", "source")
"""Elements with which a browser loads a file; the attribute `src` has its address."""

FOREIGN = re.compile(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//")
"""Text with which a style sheet loads a file from another host."""


@dataclass
class Page(HTMLParser):
    """The addresses and anchors of a page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    pictures_without_text: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if given.get(name)}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and {"stylesheet", "preconnect", "preload", "icon"} & set(given.get("rel", "").split()):
            self.loaded.append(given.get("href", ""))
        elif tag in LOADED and given.get("src"):
            self.loaded.append(given["src"])
        if given.get("data-md-component") == "source":
            self.loaded.append("https://api.github.com")
        self.pictures_without_text += tag == "img" and not given.get("alt")


def wrongs(site: Path, address: str) -> list[str]:
    """Return a sentence for each mistake in the site in the folder `site`.

    Args:
        site: The folder with index.html.
        address: The site's address, with a slash at its end.
    """
    pages = {path: Page() for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        page.feed(path.read_text(encoding="utf-8"))
    found = {path: [*_loading(path, page, site, address), *_size(path, page)] for path, page in pages.items()}
    for path in pages:
        # The page for missing addresses is shown at any depth, so its links start at the root.
        found[path] += [] if path.name == "404.html" else _links(path, pages, site, address)
    found |= {
        path: ["loads a file from another host"] for path in site.rglob("*.css") if FOREIGN.search(path.read_text())
    }
    found |= {path: _of_markdown(path) for path in [*site.rglob("*.md"), *site.rglob("*.txt")]}
    return [f"{path.relative_to(site)}: {sentence}" for path, sentences in found.items() for sentence in sentences]


def _of_markdown(path: Path) -> list[str]:
    local = [target for target in link_targets(path.read_text(encoding="utf-8")) if not urlsplit(target).scheme]
    return [f"links to {target}, which does not exist" for target in local if not (path.parent / target).exists()]


def _address(path: Path, site: Path, address: str) -> str:
    return urljoin(address, path.relative_to(site).as_posix().removesuffix("index.html"))


def _loading(path: Path, page: Page, site: Path, address: str) -> list[str]:
    here = _address(path, site, address)
    foreign = [target for target in page.loaded if not urljoin(here, target).startswith((address, "data:"))]
    return [f"loads {target} from another host" for target in foreign if path.name != "404.html" or "//" in target]


def _size(path: Path, page: Page) -> list[str]:
    size, missing = path.stat().st_size, page.pictures_without_text
    heavy = [f"has {size:,} bytes; at most {HEAVIEST:,} are allowed"] if size > HEAVIEST else []
    return heavy + ([f"pictures without alternative text: {missing}"] if missing else [])


def _links(path: Path, pages: dict[Path, Page], site: Path, address: str) -> list[str]:
    here, wrong = _address(path, site, address), []
    for target in [*pages[path].links, *pages[path].loaded]:
        leads = urlsplit(urljoin(here, target))
        if not leads.geturl().startswith(address):
            continue
        file = site / unquote(leads.path.removeprefix(urlsplit(address).path))
        file = file / "index.html" if file.is_dir() else file
        if not file.exists():
            wrong.append(f"links to {target}, which does not exist")
        elif leads.fragment and file in pages and unquote(leads.fragment) not in pages[file].anchors:
            wrong.append(f"links to {target}, but the page has no such heading")
    return wrong
