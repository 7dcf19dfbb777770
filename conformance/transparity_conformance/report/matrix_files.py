"""The agreement matrix as files: JSON for machines, and one HTML page, a heat map that needs nothing from outside."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from itertools import groupby, product
from pathlib import Path
from typing import Any

import jinja2

from transparity_conformance.report.comparison import Evidence
from transparity_conformance.report.formatting import (
    cell_in_words,
    extent,
    not_compared_in_words,
    share_in_words,
    summary,
    verdict_in_words,
)
from transparity_conformance.report.matrix import (
    Cell,
    Column,
    Footnote,
    Group,
    Matrix,
    NotCompared,
    column_of,
    name_of,
    number,
)

FORMAT_VERSION = 1

_PALEST = 1e-3
"""The share below which all cells look the same; from here to 1 the colour follows the logarithm."""


def write_json(
    path: str | Path,
    matrix: Matrix,
    environment: Mapping[str, Any],
    skipped: Sequence[str] = (),
    not_compared: Sequence[NotCompared] = (),
) -> None:
    """`as_json`, in a file."""
    content = as_json(matrix, environment, skipped, not_compared)
    Path(path).write_text(json.dumps(content, allow_nan=False, ensure_ascii=False) + "\n", encoding="utf-8")


def as_json(
    matrix: Matrix,
    environment: Mapping[str, Any],
    skipped: Sequence[str] = (),
    not_compared: Sequence[NotCompared] = (),
) -> dict[str, Any]:
    """Strict JSON: the verdict, the cells of each claim, the evidence by claim, subject and case."""
    return {
        "format_version": FORMAT_VERSION,
        "verdict": matrix.verdict,
        "summary": summary(matrix, skipped, not_compared),
        "environment": _strict(environment),
        "columns": [asdict(column) for column in matrix.columns],
        "claims": [{"id": claim, "cells": _cells_as_json(matrix, claim)} for claim in matrix.claims],
        "document_breaks": [_footnote_as_json(note) for note in matrix.footnotes],
        "evidence": [group.as_dict() for group in matrix.groups],
        "not_compared": [
            {"claim": claim, "subject": str(subject), "reason": reason} for claim, subject, reason in not_compared
        ],
        "skipped": list(skipped),
    }


def _cells_as_json(matrix: Matrix, claim: str) -> list[dict[str, Any] | None]:
    """One cell per column; null where nothing was compared."""
    cells = (matrix.cells.get((claim, column)) for column in matrix.columns)
    return [None if cell is None else _cell_as_json(cell) for cell in cells]


def _cell_as_json(cell: Cell) -> dict[str, Any]:
    return {
        "says": cell_in_words(cell),
        "agrees": cell.agrees,
        "exact": cell.exact,
        "share": None if cell.worst is None else number(cell.worst.share),
        "comparisons": cell.comparisons,
        "worst": None if cell.worst is None else Group(cell.worst, 1, cell.worst.agrees, cell.exact).as_dict(),
        "breaks": list(cell.breaks),
    }


def _footnote_as_json(note: Footnote) -> dict[str, Any]:
    agrees = all(group.agrees for group in note.groups)
    fields = {"case": note.case, "note": note.note, "claims": list(note.claims), "agrees": agrees}
    return fields | {"says": f"{note}"}


def _strict(value: Any) -> Any:
    """`value` as JSON values; what JSON has no word for, as text."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def write_html(
    path: str | Path,
    matrix: Matrix,
    environment: Mapping[str, Any],
    skipped: Sequence[str] = (),
    not_compared: Sequence[NotCompared] = (),
) -> None:
    """One page, complete in itself."""
    Path(path).write_text(as_html(matrix, environment, skipped, not_compared), encoding="utf-8")


def as_html(
    matrix: Matrix,
    environment: Mapping[str, Any],
    skipped: Sequence[str] = (),
    not_compared: Sequence[NotCompared] = (),
) -> str:
    """The page: verdict, environment, heat map with its details, what the documents break, what was left out."""
    return template("matrix.html.jinja").render(
        matrix=matrix,
        headline=verdict_in_words(matrix),
        extent="; ".join(extent(matrix, skipped, not_compared)),
        environment=list(_environment(environment)),
        families=[(family, len(list(columns))) for family, columns in groupby(matrix.columns, lambda c: c.family)],
        starts=_first_of_families(matrix.columns),
        topics=_topics(matrix),
        disagreements=[_disagreement(matrix, group) for group in matrix.disagreements],
        notes=[_note(note) for note in matrix.footnotes],
        not_compared=not_compared_in_words(not_compared),
        skipped=skipped,
        details=_details(matrix, not_compared),
    )


def template(name: str) -> jinja2.Template:
    """A page to be filled in; whatever is put into it is escaped."""
    source = resources.files("transparity_conformance").joinpath("report", "templates", name)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(source.read_text(encoding="utf-8"))


def _environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each entry on a line of its own, what is nested in it behind one another."""
    for name, value in environment.items():
        if isinstance(value, Mapping):
            yield name, " · ".join(f"{key} {item}" for key, item in value.items())
        elif isinstance(value, list | tuple):
            yield name, " · ".join(map(str, value))
        else:
            yield name, str(value)


def _first_of_families(columns: Sequence[Column]) -> set[Column]:
    return {next(members) for _, members in groupby(columns, lambda column: column.family)}


def _topics(matrix: Matrix) -> list[tuple[str, list[dict[str, Any]]]]:
    return [(topic, [_row(matrix, claim) for claim in claims]) for topic, claims in matrix.topics.items()]


def _row(matrix: Matrix, claim: str) -> dict[str, Any]:
    cells = [(column, matrix.cells.get((claim, column))) for column in matrix.columns]
    return {"claim": claim, "name": name_of(claim), "cells": [_cell(matrix, claim, *cell) for cell in cells]}


def _cell(matrix: Matrix, claim: str, column: Column, cell: Cell | None) -> dict[str, Any]:
    worst = cell.worst if cell else None
    return {
        "id": _place(matrix, claim, column),
        "column": column,
        "says": cell_in_words(cell),
        "mark": matrix.marks(cell),
        "kind": _kind(cell),
        "heat": heat(worst.share) if worst else 0,
        "title": f"{claim}, {column}: " + (f"worst at {worst.where}, {worst.case}" if worst else cell_in_words(cell)),
    }


def _place(matrix: Matrix, claim: str, column: Column) -> str:
    return f"{matrix.claims.index(claim)}-{matrix.columns.index(column)}"


def _kind(cell: Cell | None) -> str:
    if cell is None:
        return "blank"
    if not cell.agrees:
        return "fails"
    if cell.worst is None:
        return "breaks"
    return "exact" if cell.exact else "share"


def heat(share: float) -> float:
    """0 (no error to speak of) to 1 (the whole budget), by the logarithm of the share."""
    if share <= _PALEST:
        return 0.0
    return round(min(1.0, 1 - math.log(share) / math.log(_PALEST)), 3)


def _disagreement(matrix: Matrix, group: Group) -> dict[str, Any]:
    claim, subject = group.worst.claim, group.worst.subject
    place = _place(matrix, claim, column_of(subject))
    return _comparison(group) | {"claim": claim, "subject": str(subject), "cell": place}


def _note(note: Footnote) -> dict[str, Any]:
    sizes = sorted(group.worst.error for group in note.groups)
    agrees = all(group.agrees for group in note.groups)
    return {"mark": note.mark, "says": str(note), "claims": note.claims, "by": _range(sizes), "agrees": agrees}


def _range(sizes: Sequence[float]) -> str:
    low, high = scientific(sizes[0]), scientific(sizes[-1])
    return low if low == high else f"{low} to {high}"


def _details(matrix: Matrix, not_compared: Sequence[NotCompared]) -> dict[str, dict[str, Any]]:
    """What the page shows of a cell that is clicked, by its place."""
    columns = {str(group.worst.subject): column_of(group.worst.subject) for group in matrix.groups}
    reasons: dict[tuple[str, Column | None], list[str]] = defaultdict(list)
    for claim, subject, reason in not_compared:
        reasons[claim, columns.get(str(subject))].append(f"{subject}: {reason}")
    return {
        _place(matrix, *where): _detail(where, matrix.cells.get(where), reasons.get(where, []))
        for where in product(matrix.claims, matrix.columns)
    }


def _detail(where: tuple[str, Column], cell: Cell | None, reasons: list[str]) -> dict[str, Any]:
    claim, column = where
    # lists, not objects: the names of a row's entries, thousands of times, would be half of the page
    rows = [list(_comparison(group).values()) for group in _worst_first(cell)] if cell else []
    comparisons = cell.comparisons if cell else 0
    return {"claim": claim, "column": str(column), "comparisons": comparisons, "rows": rows, "reasons": reasons}


def _worst_first(cell: Cell) -> list[Group]:
    return sorted(cell.groups, key=lambda group: (not group.agrees, group.worst.share), reverse=True)


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


def _outcome(item: Evidence) -> str:
    """The share of the budget, or what became of a claim that has to break."""
    if item.expectation == "breaks":
        return "breaks, as printed" if item.agrees else "does not break"
    if item.budget == 0:
        return "equal" if item.agrees else "differs"
    return share_in_words(item.share)


def scientific(number: float) -> str:
    if not math.isfinite(number):
        return "∞"
    return f"{number:.2e}" if number and not 0.01 <= abs(number) < 1000 else f"{number:.3g}"
