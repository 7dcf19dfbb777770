"""The agreement matrix with its environment and what was not compared, as JSON and as an HTML page."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from transparity_conformance.report.agreement.matrix import (
    BLANK,
    Cell,
    Footnote,
    Group,
    Matrix,
    column_of,
    name_of,
)
from transparity_conformance.report.comparison import ClaimEvidence, Column
from transparity_conformance.report.formatting import format_share, plain, scientific, template


def write_json(path: str | Path, matrix: Matrix) -> None:
    text = json.dumps(as_json(matrix), allow_nan=False, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def as_json(matrix: Matrix) -> dict[str, Any]:
    """Return the verdict, the cells of each claim, and the worst comparison by claim, backend and case."""
    fields: dict[str, Any] = {
        "format_version": 1,
        "verdict": matrix.verdict,
        "summary": matrix.summary,
        "environment": matrix.environment,
        "columns": matrix.columns,
        "claims": [
            {"id": claim, "cases": matrix.most_cases(claim), "cells": list(map(_cell, matrix.row(claim).values()))}
            for claim in matrix.claims
        ],
        "document_breaks": [
            {"case": note.case, "note": note.note, "claims": note.claims, "agrees": note.agrees, "says": str(note)}
            for note in matrix.footnotes
        ],
        "evidence": [group.as_dict() for group in matrix.groups],
        "not_compared": [
            {"claim": claim, "subject": str(subject), "reason": reason}
            for claim, subject, reason in matrix.not_compared
        ],
        "skipped": matrix.skipped,
    }
    found: dict[str, Any] = plain(fields)
    return found


def _cell(cell: Cell) -> dict[str, Any] | None:
    if not cell.groups:
        return None
    return {
        "says": cell.text,
        "agrees": cell.agrees,
        "exact": cell.exact,
        "share": None if cell.worst is None else cell.worst.share,
        "comparisons": cell.comparisons,
        "cases": len(cell.cases),
        "worst": None if cell.worst is None else Group(cell.worst, 1, cell.worst.agrees, cell.exact).as_dict(),
        "breaks": cell.breaks,
    }


def write_html(path: str | Path, matrix: Matrix) -> None:
    Path(path).write_text(as_html(matrix), encoding="utf-8")


def as_html(matrix: Matrix) -> str:
    functions: dict[str, Any] = {"joined": _joined, "comparison": _comparison, "sizes": _sizes, "name_of": name_of}
    functions |= {"place": functools.partial(_place, matrix), "column_of": column_of}
    return template("matrix.html.jinja").render(matrix=matrix, details=_details(matrix), **functions)


def _joined(value: object) -> str:
    if isinstance(value, Mapping):
        value = [f"{key} {item}" for key, item in value.items()]
    return " · ".join(map(str, value if isinstance(value, list | tuple) else [value]))


def _place(matrix: Matrix, claim: str, column: Column) -> str:
    return f"{matrix.claims.index(claim)}-{matrix.columns.index(column)}"


def _sizes(note: Footnote) -> str:
    low, high = (scientific(pick(group.worst.error for group in note.groups)) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _details(matrix: Matrix) -> dict[str, dict[str, Any]]:
    columns = {str(group.worst.subject): column_of(group.worst.subject) for group in matrix.groups}
    reasons: dict[tuple[str, Column | None], list[str]] = defaultdict(list)
    for claim, subject, reason in matrix.not_compared:
        reasons[claim, columns.get(str(subject))].append(f"{subject}: {reason}")
    return {
        _place(matrix, *where): _detail(*where, matrix.cells.get(where, BLANK), reasons.get(where, []))
        for where in product(matrix.claims, matrix.columns)
    }


def _detail(claim: str, column: Column, cell: Cell, reasons: Sequence[str]) -> dict[str, Any]:
    # Use lists instead of objects: repeating the keys in thousands of rows would double the size of the page.
    worst_first = sorted(cell.groups, key=lambda group: (not group.agrees, group.worst.share), reverse=True)
    rows = [list(_comparison(group).values()) for group in worst_first]
    return {"claim": claim, "column": str(column), "comparisons": cell.comparisons, "rows": rows, "reasons": reasons}


def _comparison(group: Group) -> dict[str, Any]:
    worst = group.worst
    return {
        "case": worst.case,
        "mode": worst.subject.mode,
        "comparisons": group.comparisons,
        "where": worst.where,
        "error": scientific(worst.error),
        "budget": scientific(worst.budget) if worst.budget else "exact",
        "share": _outcome(worst),
        "note": worst.note,
        "agrees": group.agrees,
    }


def _outcome(item: ClaimEvidence) -> str:
    """Return the used share of the budget, such as `43 %`; for a claim that is exact or should break, return words."""
    if item.expectation == "breaks":
        return "breaks, as printed" if item.agrees else "does not break"
    if item.budget == 0:
        return "equal" if item.agrees else "differs"
    return format_share(item.share)
