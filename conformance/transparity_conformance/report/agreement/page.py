"""The agreement matrix as a self-contained HTML page, with a heat map."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from transparity_conformance.report.agreement.matrix import (
    BLANK,
    Cell,
    Column,
    Footnote,
    Group,
    Matrix,
    column_of,
    name_of,
)
from transparity_conformance.report.agreement.view import Agreement
from transparity_conformance.report.comparison import ClaimEvidence
from transparity_conformance.report.formatting import format_share, heat, scientific, template


def write_html(path: str | Path, agreement: Agreement) -> None:
    """Write the page, which needs no other files."""
    Path(path).write_text(as_html(agreement), encoding="utf-8")


def as_html(agreement: Agreement) -> str:
    """Return the page: the verdict, the environment, the heat map, mistakes of documents, and what was not compared."""
    matrix, families = agreement.matrix, agreement.families
    return template("matrix.html.jinja").render(
        matrix=matrix,
        headline=agreement.headline,
        extent="; ".join(agreement.extent),
        environment=list(_environment(agreement.environment)),
        families=families,
        starts={columns[0] for columns in families.values()},
        topics={topic: [_row(matrix, claim) for claim in claims] for topic, claims in matrix.topics.items()},
        disagreements=[_disagreement(matrix, group) for group in matrix.disagreements],
        notes=[{"note": note, "sizes": _sizes(note)} for note in matrix.footnotes],
        lists=agreement.lists,
        details=_details(matrix, agreement),
    )


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each entry; the items of a nested entry are joined."""
    for name, value in environment.items():
        if isinstance(value, Mapping):
            yield name, " · ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list | tuple):
            yield name, " · ".join(map(str, value))
        else:
            yield name, str(value)


def _row(matrix: Matrix, claim: str) -> dict[str, Any]:
    cells = [
        {
            "id": _place(matrix, claim, column),
            "column": column,
            "shown": cell,
            "mark": matrix.mark(claim, cell),
            "heat": heat(cell.share),
            "title": f"{claim}, {column}: {cell.place}",
        }
        for column, cell in matrix.row(claim).items()
    ]
    return {"claim": claim, "name": name_of(claim), "cells": cells}


def _place(matrix: Matrix, claim: str, column: Column) -> str:
    return f"{matrix.claims.index(claim)}-{matrix.columns.index(column)}"


def _disagreement(matrix: Matrix, group: Group) -> dict[str, Any]:
    claim, subject = group.worst.claim, group.worst.subject
    place = _place(matrix, claim, column_of(subject))
    return _comparison(group) | {"claim": claim, "subject": str(subject), "cell": place}


def _sizes(note: Footnote) -> str:
    low, high = (scientific(pick(group.worst.error for group in note.groups)) for pick in (min, max))
    return low if low == high else f"{low} to {high}"


def _details(matrix: Matrix, agreement: Agreement) -> dict[str, dict[str, Any]]:
    """Return, for each cell, the details that the page shows after a click on the cell."""
    columns = {str(group.worst.subject): column_of(group.worst.subject) for group in matrix.groups}
    reasons: dict[tuple[str, Column | None], list[str]] = defaultdict(list)
    for claim, subject, reason in agreement.not_compared:
        reasons[claim, columns.get(str(subject))].append(f"{subject}: {reason}")
    return {
        _place(matrix, *where): _detail(*where, matrix.cells.get(where, BLANK), reasons.get(where, []))
        for where in product(matrix.claims, matrix.columns)
    }


def _detail(claim: str, column: Column, cell: Cell, reasons: Sequence[str]) -> dict[str, Any]:
    # Lists, not objects: repeating the names of the entries in thousands of rows would double the size of the page.
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
    """Return the share of the budget, or words for an exact claim and for a claim that must break."""
    if item.expectation == "breaks":
        return "breaks, as printed" if item.agrees else "does not break"
    if item.budget == 0:
        return "equal" if item.agrees else "differs"
    return format_share(item.share)
