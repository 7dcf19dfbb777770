"""The agreement matrix as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transparity_conformance.report.agreement.matrix import Cell, Footnote, Group, Matrix, number
from transparity_conformance.report.agreement.view import Agreement, cell_text

FORMAT_VERSION = 1


def write_json(path: str | Path, agreement: Agreement) -> None:
    """Write `as_json` to a file."""
    text = json.dumps(as_json(agreement), allow_nan=False, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def as_json(agreement: Agreement) -> dict[str, Any]:
    """Strict JSON: the verdict, the cells of each claim, the evidence by claim, subject and case."""
    matrix = agreement.matrix
    return {
        "format_version": FORMAT_VERSION,
        "verdict": matrix.verdict,
        "summary": agreement.summary,
        "environment": _strict(agreement.environment),
        "columns": [asdict(column) for column in matrix.columns],
        "claims": [
            {"id": claim, "cases": matrix.most_cases(claim), "cells": _cells(matrix, claim)} for claim in matrix.claims
        ],
        "document_breaks": [_footnote(note) for note in matrix.footnotes],
        "evidence": [group.as_dict() for group in matrix.groups],
        "not_compared": [
            {"claim": claim, "subject": str(subject), "reason": reason}
            for claim, subject, reason in agreement.not_compared
        ],
        "skipped": list(agreement.skipped),
    }


def _cells(matrix: Matrix, claim: str) -> list[dict[str, Any] | None]:
    """One cell per column; null where nothing was compared."""
    cells = (matrix.cells.get((claim, column)) for column in matrix.columns)
    return [None if cell is None else _cell(cell) for cell in cells]


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "says": cell_text(cell),
        "agrees": cell.agrees,
        "exact": cell.exact,
        "share": None if cell.worst is None else number(cell.worst.share),
        "comparisons": cell.comparisons,
        "cases": len(cell.cases),
        "worst": None if cell.worst is None else Group(cell.worst, 1, cell.worst.agrees, cell.exact).as_dict(),
        "breaks": list(cell.breaks),
    }


def _footnote(note: Footnote) -> dict[str, Any]:
    claims = list(note.claims)
    return {"case": note.case, "note": note.note, "claims": claims, "agrees": note.agrees, "says": str(note)}


def _strict(value: Any) -> Any:
    """Convert `value` to JSON values; anything else becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
