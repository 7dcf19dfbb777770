"""A race as one self-contained HTML page."""

from __future__ import annotations

import base64
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from benchmarks.race.plots import save
from benchmarks.race.report import Report
from benchmarks.race.table import HEADING, LEGEND, cells, title


def write_page(folder: Path, report: Report) -> None:
    """Write `race.html`, and its plots as files beside it."""
    template = Path(__file__).with_name("page.html.jinja").read_text()
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    pictures = [{"data": _inlined(folder / name), "caption": caption} for name, caption in save(report, folder)]
    page = environment.from_string(template).render(
        report=report,
        conditions={name: _in_words(value) for name, value in report.conditions.items()},
        pictures=pictures,
        heading=HEADING,
        legend=LEGEND,
        title=title,
        cells=cells,
        by_kind=lambda rows: groupby(rows, lambda row: row.candidate.kinds[0]),
    )
    (folder / "race.html").write_text(page)


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {entry}" for name, entry in value.items()) or "none set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1e9:.3g} GB" if isinstance(value, float) else str(value)


def _inlined(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
