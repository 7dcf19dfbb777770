"""The content of an agreement matrix as plain data, for JSON, the terminal and the page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from transparity_conformance.report.agreement.matrix import (
    Cell,
    Column,
    Footnote,
    Group,
    Matrix,
    NotCompared,
    badness,
    grouped,
    name_of,
    number,
)
from transparity_conformance.report.formatting import count, format_share, percent, times

FEWER = "*"
"""The mark of a cell with fewer cases than another column has of the same claim."""

Kind = Literal["blank", "fails", "breaks", "exact", "share"]


@dataclass(frozen=True)
class Agreement:
    """The result of a session: its matrix, the environment, and what was skipped or not compared."""

    matrix: Matrix
    environment: Mapping[str, Any] = field(default_factory=dict)
    skipped: Sequence[str] = ()
    not_compared: Sequence[NotCompared] = ()

    @property
    def summary(self) -> str:
        """The matrix in one line."""
        return "; ".join([*self.extent, self.headline])

    @cached_property
    def extent(self) -> list[str]:
        """The number of comparisons, the worst one, and the number of omissions."""
        cells = self.matrix.cells.values()
        backends = len({column.backend for column in self.matrix.columns})
        comparisons = sum(cell.comparisons for cell in cells)
        counts = [count(len(self.matrix.claims), "claim"), count(comparisons, "comparison")]
        parts = [f"{', '.join(counts)} over {count(backends, 'backend')}"]
        worst = max((cell.worst for cell in cells if cell.worst), key=badness, default=None)
        if worst is not None and worst.share != 0:
            place = f"{worst.claim}, {worst.subject}, {worst.case}: {worst.where}"
            parts.append(f"worst share {format_share(worst.share)} ({place})")
        left_out = ((self.skipped, "skipped"), (self.not_compared, "not compared"))
        return parts + [f"{len(items):,} {label}" for items, label in left_out if items]

    @property
    def headline(self) -> str:
        """`all agree`, the number of claims that fail, or that nothing was compared."""
        failing = {group.worst.claim for group in self.matrix.disagreements}
        if failing:
            return f"{len(failing)} of {count(len(self.matrix.claims), 'claim')} FAIL" + "S" * (len(failing) == 1)
        return "all agree" if self.matrix.cells else "nothing was compared"

    @property
    def families(self) -> dict[str, list[Column]]:
        """Neighboring columns of one backend on one device."""
        groups = groupby(self.matrix.columns, lambda column: column.family)
        return {family: list(columns) for family, columns in groups}

    @cached_property
    def topics(self) -> dict[str, list[ShownRow]]:
        """The rows of each topic."""
        return {topic: [self._row(claim) for claim in claims] for topic, claims in self.matrix.topics.items()}

    def _row(self, claim: str) -> ShownRow:
        cells = {column: self.matrix.cells.get((claim, column)) for column in self.matrix.columns}
        most = self.matrix.most_cases(claim)
        return ShownRow(claim, {column: shown_cell(self.matrix, cell, most) for column, cell in cells.items()})

    @property
    def lists(self) -> dict[str, Sequence[str]]:
        """Omitted items under their headings."""
        fewer = f"{FEWER} Fewer cases than in another column"
        return {fewer: _fewer_cases(self.matrix), "Not compared": _reasons(self.not_compared), "Skipped": self.skipped}


@dataclass(frozen=True)
class ShownCell:
    """The text of a cell, the marks of its footnotes, and what decides its color."""

    text: str
    mark: str
    kind: Kind
    share: float
    """The worst share of a budget; 0 without one."""
    worst: str
    """The place of the worst comparison; the text without one."""


@dataclass(frozen=True)
class ShownRow:
    """One claim over all columns."""

    claim: str
    cells: Mapping[Column, ShownCell]

    @property
    def name(self) -> str:
        """The claim without its topic."""
        return name_of(self.claim)


def shown_cell(matrix: Matrix, cell: Cell | None, most_cases: int) -> ShownCell:
    """The cell as it is shown; None where nothing was compared. A cell with fewer than `most_cases` is marked."""
    text, worst = cell_text(cell), cell.worst if cell else None
    place = f"worst at {worst.where}, {worst.case}" if worst else text
    fewer = FEWER if cell and len(cell.cases) < most_cases else ""
    return ShownCell(text, matrix.marks(cell) + fewer, _kind(cell), worst.share if worst else 0.0, place)


def _fewer_cases(matrix: Matrix) -> list[str]:
    """One line for each case count below the largest of a claim's columns."""
    fewer = (
        ((len(cell.cases), most, claim), str(column))
        for (claim, column), cell in matrix.cells.items()
        if len(cell.cases) < (most := matrix.most_cases(claim))
    )
    claims = grouped(((cases, most, ", ".join(names)), claim) for (cases, most, claim), names in grouped(fewer).items())
    return [f"{', '.join(names)} ({of}): {cases} of {most}" for (cases, most, of), names in claims.items()]


def cell_text(cell: Cell | None) -> str:
    """`43 %`, `exact`, `FAILS 3.2×`, `breaks` (as the document prints it), or `·` where nothing was compared."""
    kind = _kind(cell)
    if cell is None or kind == "blank":
        return "·"
    if kind == "fails":
        # neither an exact claim nor one that should have broken has a budget to be a multiple of
        worst = None if cell.exact else cell.worst
        return "FAILS" if worst is None or worst.agrees else f"FAILS {times(worst.share)}"
    return percent(cell.worst.share) if cell.worst and kind == "share" else kind


def _kind(cell: Cell | None) -> Kind:
    if cell is None:
        return "blank"
    if not cell.agrees:
        return "fails"
    if cell.worst is None:
        return "breaks"
    return "exact" if cell.exact else "share"


def _reasons(not_compared: Sequence[NotCompared]) -> list[str]:
    """One line for each reason, with its claims and subjects."""
    subjects = grouped(((claim, reason), str(subject)) for claim, subject, reason in not_compared)
    claims = grouped(((", ".join(dict.fromkeys(of)), reason), claim) for (claim, reason), of in subjects.items())
    return [f"{', '.join(names)} ({subject}): {reason}" for (subject, reason), names in claims.items()]


def worst_first(groups: Sequence[Group]) -> list[Group]:
    """Disagreements first, then by share."""
    return sorted(groups, key=lambda group: (not group.agrees, group.worst.share), reverse=True)


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
