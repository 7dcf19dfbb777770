"""Generated parts of the home page: a comparison of two implementations, and the three columns as text."""

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from docs import three_columns
from docs.site.kept import kept
from docs.site.pages import ROOT, lines_around

from transparity_conformance import check
from transparity_conformance.report.check.findings import sentence

PAGE = ROOT / "docs/against.md"
"""The page with the example that the home page shows."""

BEFORE = "## One transformer, three frameworks"
"""The heading of README.md before which the comparison is inserted."""

PICTURE = re.compile(r"!\[[^\]]*\]\(three-columns\.svg\)")
"""The picture of README.md that the home page replaces by text, which fits into a narrow window."""

BADGE = re.compile(r"(?m)^\[!\[.*\n")
"""A pattern for pictures from other hosts, which the site does not load."""

INDEX = re.compile(r"\[Documentation\]\([^)]*\) · ")
"""The link to the list of pages, which the site replaces by its navigation."""

AROUND = 3
"""The number of lines shown before and after a diverging line."""


def textbook() -> str:
    blocks = []
    for index, title in enumerate(three_columns.COLUMNS):
        code = "\n".join(row[index] for row in three_columns.rows())
        blocks.append(f'<div markdown>\n```python title="{title}"\n{code}\n```\n</div>')
    return '<div class="three" markdown>\n' + "\n".join(blocks) + "\n</div>"


def files() -> dict[str, str]:
    found = re.findall(r"(?ms)^```python\n(# (\w+\.py)\n.*?)^```$", PAGE.read_text(encoding="utf-8"))
    return {name: text for text, name in found}


def compared() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files().items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        report = check(f"{folder}/mine.py:Port", against=f"{folder}/theirs.py:Theirs", inputs=f"{folder}/inputs.py")
    fault = report.faults[0]
    return {"says": sentence(report), "yours": fault.source, "theirs": fault.reference_source}


def answer() -> str:
    found = kept("home", [PAGE.read_bytes(), Path(__file__).read_bytes()], compared)
    both = "\n".join(f"<div markdown>\n{_around(found[side])}\n</div>" for side in ("yours", "theirs"))
    title = "## Two implementations, side by side"
    link = "[Compare a port of any model with another implementation](against.md)"
    return f'{title}\n\n> {found["says"]}\n\n<div class="both" markdown>\n{both}\n</div>\n\n{link}.\n'


def _around(source: Mapping[str, Any]) -> str:
    name = Path(source["file"]).name
    return lines_around(name, files()[name], int(source["line"]), AROUND)
