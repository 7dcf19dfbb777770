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
        conditions=[(name, _in_words(value)) for name, value in report.conditions.items()],
        workloads=[_section(report, workload, rows) for workload, rows in report.by_workload()],
        pictures=pictures,
        missing=report.absent,
        legend=LEGEND,
    )
    (folder / "race.html").write_text(page)


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {entry}" for name, entry in value.items()) or "none set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value / 1e9:.3g} GB" if isinstance(value, float) else str(value)


def _section(report: Report, workload: Any, rows: list[Any]) -> dict[str, Any]:
    kinds = groupby(rows, lambda row: row.candidate.kinds[0])
    return {
        "title": title(workload),
        "heading": HEADING,
        "kinds": [{"name": kind, "rows": [_row(row) for row in of_kind]} for kind, of_kind in kinds],
        "not_asked": report.not_asked.get(workload.name, {}),
    }


def _row(row: Any) -> dict[str, Any]:
    return {
        "name": row.candidate.name,
        "ours": row.candidate.ours,
        "failed": row.failed,
        "cells": [] if row.failed else cells(row),
        "note": row.candidate.own_weights,
    }


def _inlined(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
