"""Write docs/faults.md, the list of all causes, and a page for each cause in docs/causes/.

`python docs/faults.py` writes the pages. tests/project/test_pages.py compares the pages with the catalogue.
"""

import difflib
import functools
import itertools
import re
import textwrap
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transparity.taps import tap_shapes
from transparity_conformance.capabilities.faults import FAULTS
from transparity_conformance.catalogue import faults_at, whole_model
from transparity_conformance.catalogue.fault import Fault
from transparity_conformance.oracle.cases import MODELS
from transparity_conformance.report.causes import Meaning, meanings

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/faults.md"
CAUSES = ROOT / "docs/causes"
META = ROOT / "conformance/meta"
AROUND = META / "planting/around.toml"

RANKS = 2
"""The number of ranks for faults of sharding."""

COLUMNS = {
    "pytorch": ("PyTorch", "backends/transparity_pytorch"),
    "flax": ("JAX", "backends/transparity_flax"),
    "numpy": ("NumPy", "reference/transparity_numpy"),
}

FOLDED = 3
"""The largest number of variants in a list that is not folded."""

PLACEHOLDER = re.compile(r"if (?:True|False)\b|^pass$")
"""Matches planted code that replaces a deleted line; no page shows this code."""

INTRODUCTION = """# Faults

The checker knows these faults by name. Each page shows the correct rule, a wrong line and the right one, and the inputs
that hide the fault; `transparity explain NAME` prints the rule. Most faults have several variants. If a variant
contains a number, the checker computes this number from the port's values. A port with any other fault still diverges,
and the report shows where; only the cause has no name.

`python docs/faults.py` writes this page. To add a fault, see [CONTRIBUTING.md](../CONTRIBUTING.md).
"""


def of_the_forward_pass() -> Iterator[tuple[str, Fault]]:
    """Yield each fault of the forward pass with its activation's name, which is empty for faults of a whole model."""
    for config in MODELS.values():
        for site in tap_shapes(config, 1, **dict.fromkeys(config.input_names, 3)):
            yield from ((site, fault) for fault in faults_at(config, site, ranks=RANKS))
        yield from (("", hypothesis.fault) for hypothesis in whole_model(config))


def catalogue() -> dict[str, list[str]]:
    found = {"The forward pass": sorted({fault.id for _, fault in of_the_forward_pass()})}
    found |= {name.capitalize(): sorted({fault.id for fault in faults}) for name, faults in FAULTS.items()}
    return found | {"Files, loaders and ranks": sorted({*meanings()}.difference(*found.values()))}


def page() -> str:
    parts = [INTRODUCTION]
    for title, names in catalogue().items():
        rows = [f"| [{meanings()[name].title}](causes/{name}.md) | `{name}` |" for name in names]
        parts.append("\n".join([f"## {title}\n", "| fault | name |", "|---|---|", *rows, ""]))
    return "\n".join(parts)


def sentences() -> dict[str, list[str]]:
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for _, fault in of_the_forward_pass():
        found[fault.id].setdefault(fault.variant, fault.description)
    for simulated in itertools.chain.from_iterable(FAULTS.values()):
        found[simulated.id][simulated.says] = simulated.says
    return {name: list(dict.fromkeys(texts.values())) for name, texts in found.items()}


def places() -> dict[str, set[str]]:
    """Return the activations at which each cause may occur, without layer numbers in the names."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for site, fault in of_the_forward_pass():
        if site:
            found[fault.id].add(".".join(part for part in site.split(".")[-2:] if not part.isdigit()))
    return found


def edit(text: str, old: str, new: str) -> str:
    """Return a diff from the wrong lines to the right ones.

    The right lines are the lines of `text` that contain `old`; in the wrong lines, `new` replaces `old`.

    Raises:
        ValueError: `text` does not contain `old` exactly once.
    """
    if text.count(old) != 1:
        raise ValueError(f"{old!r} is in {text.count(old)} places; expected one.")
    start = text.rfind("\n", 0, text.index(old)) + 1
    right = text[start : text.find("\n", text.index(old) + len(old)) % (len(text) + 1)]
    wrong = right.replace(old, new).rstrip("\n")
    both, number = textwrap.dedent(f"{wrong}\n{right}").splitlines(), len(wrong.splitlines())
    lines = [line for line in difflib.ndiff(both[:number], both[number:]) if line[0] != "?"]
    signs = Counter(line[0] for line in lines)
    if set(signs) == {"-", "+"} and signs["-"] != signs["+"]:  # no line of the one belongs to a line of the other
        lines.sort(key=lambda line: line[0] == "+")
    return "\n".join(re.sub(r"# noqa.*", "", line).rstrip() for line in lines)


@functools.cache
def _sources(column: str) -> dict[str, str]:
    folder = ROOT / COLUMNS[column][1]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}


def planted_lines() -> dict[str, dict[str, str]]:
    """Return the diffs of the faults that the tests plant in the columns, by cause and by the column's title."""
    found: defaultdict[str, dict[str, str]] = defaultdict(dict)
    bugs = [
        {"cause": row["causes"][0], **row["columns"]} for row in _rows(META / "independent/bugs") if "columns" in row
    ]
    others = tomllib.loads(AROUND.read_text(encoding="utf-8"))["columns"]
    for row in (*bugs, *others, *_rows_of(META / "planting/plants.toml")):
        for column, (title, _) in COLUMNS.items():
            text = row | row.get(column, {})
            source = _sources(column).get(f"{text.get('file', '').replace('.', '/')}.py", "")
            if column in row or source.count(text.get("old", "\0")) == 1:
                found[row.get("cause") or row["id"]].setdefault(title, edit(source, text["old"], text["new"]))
    for row in _rows(ROOT / "conformance/transparity_conformance/capabilities/faults"):
        (old, new), *_ = row.get("edits") or [("\0", "")]
        if sources := [text for text in _sources("numpy").values() if text.count(old) == 1]:
            found[row["id"]].setdefault("NumPy", edit(sources[0], old, new))
    return found


def published_lines() -> dict[str, tuple[str, str]]:
    """Return, for each cause, a description of a file outside of the columns, and the diff of a bug in this file.
    Prefer bugs in published code, then bugs whose first cause is this cause, then bugs with one change."""
    found: dict[str, tuple[Any, ...]] = {}
    for row in itertools.chain(_rows(META / "exam/bugs"), _rows(META / "independent/bugs")):
        hunk = row if "old" in row else min(row.get("hunks", []), key=lambda hunk: len(hunk["new"]), default={})
        old, new = hunk.get("old", "").strip("\n"), hunk.get("new", "").strip("\n")
        if old and new and not PLACEHOLDER.search(new) and "file" in row and not row["file"].startswith("subjects"):
            for rank, cause in enumerate(row.get("causes", [])):
                shown = row["file"], row.get("story", ""), edit(_text_around(row["file"], old), old, new)
                worse = "/" not in row["file"], rank > 0, "hunks" in row, "source" not in row
                this = *worse, rank, len(old + new), shown
                found[cause] = min(found.get(cause, this), this)
    lines = dict(_lines_around())
    for cause, (*_, (file, story, text)) in found.items():
        place = f"`{file}`" if "/" in file else "an independent port in PyTorch"
        lines[cause] = f"{place} ({story})" if story else place, text
    return lines


def _text_around(file: str, old: str) -> str:
    path = META / "independent" / file
    text = path.read_text(encoding="utf-8") if path.is_file() else old
    return text if text.count(old) == 1 else old


def _lines_around() -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the causes of loaders, conversions and ranks, each with a description of the wrong file and the diff. If a
    cause occurs twice, the last diff counts."""
    text = (META / "ranks/by_hand.py").read_text(encoding="utf-8")
    sharded = {
        row["id"]: (row["old"].strip("\n"), row["new"].strip("\n")) for row in _rows_of(META / "ranks/mistakes.toml")
    }
    for case in [*_rows_of(META / "ranks/cases.toml")][::-1]:
        if "cause" in case:
            diff = edit(text, *sharded[case["port"].partition("__")[2]])
            yield case["cause"], ("a PyTorch port on several ranks", diff)
    for row in tomllib.loads(AROUND.read_text(encoding="utf-8"))["line"]:
        text = (ROOT / row["file"]).read_text(encoding="utf-8")
        yield row["cause"], (row["where"], edit(text, row["old"], row["new"].removeprefix("\n")))


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    return itertools.chain.from_iterable(map(_rows_of, sorted(folder.glob("*.toml"))))


def _rows_of(path: Path) -> Iterator[dict[str, Any]]:
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    shared = {name: value for name, value in tables.items() if not isinstance(value, list)}
    for rows in (value for value in tables.values() if isinstance(value, list)):
        yield from (shared | row for row in rows if isinstance(row, dict))


def shown_lines(
    planted: dict[str, str], published: tuple[str, str] | None, because: str | None, outside: str | None
) -> Iterator[str]:
    """Yield diffs of each column and of published code as Markdown, or the reasons why diffs are missing."""
    if because:
        yield f"**No single line is wrong:** {because}"
    if planted:
        shown = [title for title, _ in COLUMNS.values() if title in planted]
        where = "the three columns" if len(shown) == len(COLUMNS) else f"our {' and '.join(shown)} code"
        yield f"**Wrong (−) and right (+)** in {where}:"
        yield from (f"**{title}**\n\n```diff\n{planted[title]}\n```" for title in shown)
    if outside:
        yield f"**No wrong line in {'the other' if planted else 'our three'} columns:** {outside}"
    if published:
        yield f"**Wrong (−) and right (+)** in {published[0]}:\n\n```diff\n{published[1]}\n```"


def cause_page(name: str, meaning: Meaning, lines: Iterator[str], says: list[str], taps: set[str]) -> str:
    parts = [f"# {meaning.title}", f"`{name}`", f"**Right:** {meaning.right}", *lines]
    parts.append(f"**Where to look:** {meaning.look}")
    if meaning.hidden:
        parts.append(f"**The fault does not show with:** {meaning.hidden}.")
    if taps:
        parts.append("**Activations:** " + ", ".join(f"`{tap}`" for tap in sorted(taps)))
    if says:
        listed = "\n".join(f"- {text}" for text in says)
        summary = f"What a report says: {len(says)} variants"
        folded = f'<details markdown="1">\n<summary>{summary}</summary>\n\n{listed}\n\n</details>'
        parts.append(folded if len(says) > FOLDED else f"**What a report says:**\n\n{listed}")
    if meaning.seen:
        threads = zip(meaning.seen, meaning.links(), strict=True)
        parts.append("**Seen in real ports:** " + ", ".join(f"[{seen}]({link})" for seen, link in threads))
    parts.append("[All faults](../faults.md)")
    return "\n\n".join(parts) + "\n"


def cause_pages() -> dict[str, str]:
    says, taps, planted, published = sentences(), places(), planted_lines(), published_lines()
    reasons = tomllib.loads(AROUND.read_text(encoding="utf-8"))
    without_lines = {row["cause"]: row["because"] for row in reasons["no-line"]}
    outside = {cause: row["because"] for row in reasons["outside"] for cause in row["causes"]}
    return {
        name: cause_page(
            name,
            each,
            shown_lines(planted.get(name, {}), published.get(name), without_lines.get(name), outside.get(name)),
            says.get(name, []),
            taps.get(name, set()),
        )
        for name, each in meanings().items()
    }


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    pages = cause_pages()
    CAUSES.mkdir(exist_ok=True)
    for old in CAUSES.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        (CAUSES / f"{name}.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
