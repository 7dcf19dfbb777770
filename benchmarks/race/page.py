"""A race as one HTML page that needs nothing from outside."""

from __future__ import annotations

import base64
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from benchmarks.race.plots import save
from benchmarks.race.report import HEADING, LEGEND, Report, cells, title


def write_page(folder: Path, report: Report) -> None:
    """`race.html`, and its plots as files beside it."""
    (folder / "race.html").write_text(as_html(report, save(report, folder), folder))


def as_html(report: Report, pictures: list[tuple[str, str]], folder: Path) -> str:
    """The page, the pictures in it."""
    template = Path(__file__).with_name("page.html.jinja").read_text()
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    return environment.from_string(template).render(
        conditions=_conditions(report),
        workloads=[_section(report, workload, rows) for workload, rows in report.by_workload()],
        pictures=[{"data": _inlined(folder / name), "says": says} for name, says in pictures],
        absent=report.absent,
        legend=LEGEND,
    )


def _conditions(report: Report) -> list[tuple[str, str]]:
    """The conditions in words."""
    return [(name, _in_words(value)) for name, value in report.conditions.items()]


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {says}" for name, says in value.items()) or "none set"
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _section(report: Report, workload: Any, rows: list[Any]) -> dict[str, Any]:
    kinds = groupby(rows, lambda row: row.candidate.kinds[0])
    return {
        "title": title(workload, rows),
        "heading": HEADING,
        "kinds": [
            {
                "name": kind,
                "rows": [
                    {
                        "name": row.candidate.name,
                        "ours": row.candidate.ours,
                        "failed": row.failed,
                        "cells": [] if row.failed else cells(row),
                        "note": row.candidate.own_weights,
                    }
                    for row in of_kind
                ],
            }
            for kind, of_kind in kinds
        ],
        "not_asked": report.not_asked.get(workload.name, {}),
    }


def _inlined(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
