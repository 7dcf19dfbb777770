"""The agreement matrix with its environment and what was not compared, as JSON and as an HTML page."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, product
from pathlib import Path
from typing import Any

from transparity_conformance.report.agreement.matrix import (
    BLANK,
    FEWER,
    Cell,
    Footnote,
    Group,
    Matrix,
    NotCompared,
    badness,
    column_of,
    grouped,
    name_of,
)
from transparity_conformance.report.comparison import ClaimEvidence, Column
from transparity_conformance.report.formatting import count, format_share, plain, scientific, template


@dataclass(frozen=True)
class Agreement:
    matrix: Matrix
    environment: Mapping[str, Any] = field(default_factory=dict)
    skipped: Sequence[str] = ()
    not_compared: Sequence[NotCompared] = ()

    @property
    def summary(self) -> str:
        return "; ".join([*self.extent, self.headline])

    @cached_property
    def extent(self) -> list[str]:
        """The number of comparisons, the worst, and how many were skipped or left out."""
        cells = self.matrix.cells.values()
        backends = len({column.backend for column in self.matrix.columns})
        comparisons = sum(cell.comparisons for cell in cells)
        counts = [count(len(self.matrix.claims), "claim"), count(comparisons, "comparison")]
        parts = [f"{', '.join(counts)} over {count(backends, 'backend')}"]
        worst = max((cell.worst for cell in cells if cell.worst), key=badness, default=None)
        if worst is not None and worst.share != 0:
            place = f"{worst.claim}, {worst.subject}, {worst.case}: {worst.where}"
            parts.append(f"largest error {format_share(worst.share)} of its tolerance ({place})")
        left_out = ((self.skipped, "skipped"), (self.not_compared, "not compared"))
        return parts + [f"{len(items):,} {label}" for items, label in left_out if items]

    @property
    def headline(self) -> str:
        failing = {group.worst.claim for group in self.matrix.disagreements}
        if failing:
            return f"{len(failing)} of {count(len(self.matrix.claims), 'claim')} FAIL" + "S" * (len(failing) == 1)
        return "all agree" if self.matrix.cells else "nothing was compared"

    @property
    def families(self) -> dict[str, list[Column]]:
        return {family: list(each) for family, each in groupby(self.matrix.columns, lambda column: column.family)}

    @property
    def lists(self) -> dict[str, Sequence[str]]:
        fewer = f"{FEWER} Fewer cases than in another column"
        return {fewer: _fewer_cases(self.matrix), "Not compared": _reasons(self.not_compared), "Skipped": self.skipped}


def _fewer_cases(matrix: Matrix) -> list[str]:
    fewer = (
        ((len(cell.cases), most, claim), str(column))
        for (claim, column), cell in matrix.cells.items()
        if len(cell.cases) < (most := matrix.most_cases(claim))
    )
    claims = grouped(((cases, most, ", ".join(names)), claim) for (cases, most, claim), names in grouped(fewer).items())
    return [f"{', '.join(names)} ({of}): {cases} of {most}" for (cases, most, of), names in claims.items()]


def _reasons(not_compared: Sequence[NotCompared]) -> list[str]:
    subjects = grouped(((claim, reason), str(subject)) for claim, subject, reason in not_compared)
    claims = grouped(((", ".join(dict.fromkeys(of)), reason), claim) for (claim, reason), of in subjects.items())
    return [f"{', '.join(names)} ({subject}): {reason}" for (subject, reason), names in claims.items()]


def write_json(path: str | Path, agreement: Agreement) -> None:
    text = json.dumps(as_json(agreement), allow_nan=False, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")


def as_json(agreement: Agreement) -> dict[str, Any]:
    """Return the verdict, the cells of each claim, and the worst comparison by claim, backend and case."""
    matrix = agreement.matrix
    fields: dict[str, Any] = {
        "format_version": 1,
        "verdict": matrix.verdict,
        "summary": agreement.summary,
        "environment": agreement.environment,
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
            for claim, subject, reason in agreement.not_compared
        ],
        "skipped": agreement.skipped,
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


def write_html(path: str | Path, agreement: Agreement) -> None:
    Path(path).write_text(as_html(agreement), encoding="utf-8")


def as_html(agreement: Agreement) -> str:
    matrix = agreement.matrix
    functions: dict[str, Any] = {"joined": _joined, "comparison": _comparison, "sizes": _sizes, "name_of": name_of}
    functions |= {"place": functools.partial(_place, matrix), "column_of": column_of}
    given = {"agreement": agreement, "matrix": matrix, "details": _details(matrix, agreement)}
    return template("matrix.html.jinja").render(**given, **functions)


def _joined(value: object) -> str:
    if isinstance(value, Mapping):
        value = [f"{key} {item}" for key, item in value.items()]
    return " · ".join(map(str, value if isinstance(value, list | tuple) else [value]))


def _place(matrix: Matrix, claim: str, column: Column) -> str:
    return f"{matrix.claims.index(claim)}-{matrix.columns.index(column)}"


def _sizes(note: Footnote) -> str:
    low, high = (scientific(pick(group.worst.error for group in note.groups)) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _details(matrix: Matrix, agreement: Agreement) -> dict[str, dict[str, Any]]:
    columns = {str(group.worst.subject): column_of(group.worst.subject) for group in matrix.groups}
    reasons: dict[tuple[str, Column | None], list[str]] = defaultdict(list)
    for claim, subject, reason in agreement.not_compared:
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
    """Return the used share of the budget, or words for a claim that is exact or should break."""
    if item.expectation == "breaks":
        return "breaks, as printed" if item.agrees else "does not break"
    if item.budget == 0:
        return "equal" if item.agrees else "differs"
    return format_share(item.share)
