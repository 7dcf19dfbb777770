"""The agreement matrix: a row for each claim, and a column for each backend, dtype and device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, product
from typing import Any, Literal, TypeVar

from transparity.presets import PRESETS
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence, Column
from transparity_conformance.report.formatting import count, format_share, plain

NotCompared = tuple[str, BackendSubject | str, str]
"""A claim, a backend or the backend's name, and the reason why the claim was not tested for this backend."""

Kind = Literal["blank", "fails", "breaks", "exact", "share"]

FEWER = "*"

Key = TypeVar("Key")
Value = TypeVar("Value")

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Group:
    worst: ClaimEvidence
    comparisons: int
    agrees: bool
    exact: bool

    @property
    def breaks(self) -> bool:
        return self.worst.expectation == "breaks"

    def as_dict(self) -> dict[str, Any]:
        worst = vars(self.worst) | vars(self.worst.subject) | {"share": self.worst.share}
        del worst["subject"]
        fields: dict[str, Any] = plain(worst | {"comparisons": self.comparisons, "agrees": self.agrees})
        return fields


@dataclass(frozen=True)
class Cell:
    """The comparisons of one claim in one column, over all cases and modes."""

    groups: tuple[Group, ...] = ()

    @cached_property
    def worst(self) -> ClaimEvidence | None:
        """The comparison that uses the largest share of its budget; None if the claim should break in every case."""
        return max((group.worst for group in self.groups if not group.breaks), key=badness, default=None)

    @property
    def comparisons(self) -> int:
        return sum(group.comparisons for group in self.groups)

    @property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.worst.case for group in self.groups))

    @property
    def agrees(self) -> bool:
        return all(group.agrees for group in self.groups)

    @property
    def exact(self) -> bool:
        return self.worst is not None and all(group.exact for group in self.groups if not group.breaks)

    @property
    def breaks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.worst.case for group in self.groups if group.breaks))

    @property
    def share(self) -> float:
        return self.worst.share if self.worst else 0.0

    @property
    def place(self) -> str:
        """The worst comparison's activation and case, or the cell's `text`."""
        return f"worst at {self.worst.where}, {self.worst.case}" if self.worst else self.text

    @property
    def kind(self) -> Kind:
        if not self.groups:
            return "blank"
        if not self.agrees:
            return "fails"
        if self.worst is None:
            return "breaks"
        return "exact" if self.exact else "share"

    @property
    def text(self) -> str:
        """`43 %`, `exact`, `FAILS 3.2×`, `breaks` (as expected), or `·` if nothing was compared."""
        if self.kind == "fails":
            # Show no multiple of the budget if the budget is 0, or if the claim holds although it should break.
            worst = None if self.exact else self.worst
            return "FAILS" if worst is None or worst.agrees else f"FAILS {format_share(worst.share)}"
        return {"blank": "·", "share": format_share(self.share)}.get(self.kind, self.kind)


BLANK = Cell()


@dataclass(frozen=True)
class Footnote:
    """A mistake in a document, and the claims that this mistake breaks."""

    mark: str
    case: str
    note: str
    groups: tuple[Group, ...]

    @property
    def claims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.worst.claim for group in self.groups))

    @property
    def agrees(self) -> bool:
        return all(group.agrees for group in self.groups)

    def __str__(self) -> str:
        preset = PRESETS.get(self.case)

        # `document` is a text such as "001, the language model", of which only the number is shown.
        document = f"document {preset.document.partition(',')[0]}" if preset else self.case
        note = f": {self.note}" if self.note else ""
        held = [f"{group.worst.claim} ({group.worst.subject})" for group in self.groups if not group.agrees]
        but = f"; FAILS, because these claims did not break: {', '.join(held)}" if held else ""
        return f"a mistake in {document} breaks the claim{f' for {self.case}' * bool(preset)}{note}{but}"


@dataclass(frozen=True)
class Matrix:
    """Rows for claims, sorted by topic, and columns for backends; cells without comparisons are absent."""

    claims: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]
    environment: Mapping[str, Any] = field(default_factory=dict)
    skipped: Sequence[str] = ()
    not_compared: Sequence[NotCompared] = ()

    @property
    def groups(self) -> Iterator[Group]:
        return (group for cell in self.cells.values() for group in cell.groups)

    @property
    def verdict(self) -> str:
        if not self.cells:
            return "inconclusive"
        return "agrees" if all(cell.agrees for cell in self.cells.values()) else "diverges"

    @property
    def disagreements(self) -> list[Group]:
        failing = (group for group in self.groups if not group.agrees)
        return sorted(failing, key=lambda group: badness(group.worst), reverse=True)

    @cached_property
    def footnotes(self) -> list[Footnote]:
        cells = (self.cells[where] for where in product(self.claims, self.columns) if where in self.cells)
        breaks = (group for cell in cells for group in cell.groups if group.breaks)
        reasons = grouped(((group.worst.case, group.worst.note), group) for group in breaks)
        marked = enumerate(reasons.items(), start=1)
        return [Footnote(str(n).translate(_SUPERSCRIPTS), case, note, tuple(gs)) for n, ((case, note), gs) in marked]

    def most_cases(self, claim: str) -> int:
        return max(len(cell.cases) for (of, _), cell in self.cells.items() if of == claim)

    def row(self, claim: str) -> dict[Column, Cell]:
        return {column: self.cells.get((claim, column), BLANK) for column in self.columns}

    def mark(self, claim: str, cell: Cell) -> str:
        """Return the marks of a cell's footnotes, followed by `FEWER` if another cell of the row compares more
        cases."""
        reasons = {(group.worst.case, group.worst.note) for group in cell.groups if group.breaks}
        marks = ",".join(note.mark for note in self.footnotes if (note.case, note.note) in reasons)
        return marks + FEWER * (0 < len(cell.cases) < self.most_cases(claim))

    @property
    def topics(self) -> dict[str, list[str]]:
        return _topics(self.claims)

    @property
    def summary(self) -> str:
        return "; ".join([*self.extent, self.headline])

    @cached_property
    def extent(self) -> list[str]:
        """Clauses with the numbers of claims, comparisons and backends, the largest error, and the numbers of skipped
        and omitted comparisons."""
        cells = self.cells.values()
        backends = len({column.backend for column in self.columns})
        comparisons = sum(cell.comparisons for cell in cells)
        counts = [count(len(self.claims), "claim"), count(comparisons, "comparison")]
        parts = [f"{', '.join(counts)} over {count(backends, 'backend')}"]
        worst = max((cell.worst for cell in cells if cell.worst), key=badness, default=None)
        if worst is not None and worst.share != 0:
            place = f"{worst.claim}, {worst.subject}, {worst.case}: {worst.where}"
            parts.append(f"largest error {format_share(worst.share)} of its tolerance ({place})")
        left_out = ((self.skipped, "skipped"), (self.not_compared, "not compared"))
        return parts + [f"{len(items):,} {label}" for items, label in left_out if items]

    @property
    def headline(self) -> str:
        failing = {group.worst.claim for group in self.disagreements}
        if failing:
            return f"{len(failing)} of {count(len(self.claims), 'claim')} FAIL" + "S" * (len(failing) == 1)
        return "all agree" if self.cells else "nothing was compared"

    @property
    def families(self) -> dict[str, list[Column]]:
        return {family: list(each) for family, each in groupby(self.columns, lambda column: column.family)}

    @property
    def lists(self) -> dict[str, Sequence[str]]:
        fewer = f"{FEWER} Fewer cases than in another column"
        return {fewer: _fewer_cases(self), "Not compared": _reasons(self.not_compared), "Skipped": self.skipped}


def fold(
    evidence: Iterable[ClaimEvidence],
    environment: Mapping[str, Any] | None = None,
    skipped: Sequence[str] = (),
    not_compared: Sequence[NotCompared] = (),
) -> Matrix:
    cells = grouped(((group.worst.claim, column_of(group.worst.subject)), group) for group in _groups(evidence))
    claims = [claim for topic in _topics(claim for claim, _ in cells).values() for claim in topic]
    columns = _in_order(list(dict.fromkeys(column for _, column in cells)))
    by_place = {where: Cell(tuple(groups)) for where, groups in cells.items()}
    return Matrix(tuple(claims), tuple(columns), by_place, environment or {}, skipped, not_compared)


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


def column_of(subject: BackendSubject) -> Column:
    return Column(subject.backend, subject.dtype, subject.device)


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    values: dict[Key, list[Value]] = {}
    for key, value in pairs:
        values.setdefault(key, []).append(value)
    return values


def _groups(evidence: Iterable[ClaimEvidence]) -> Iterator[Group]:
    whys = ((item, item.note if item.expectation == "breaks" else "holds") for item in evidence)
    for items in grouped(((item.claim, item.subject, item.case, why), item) for item, why in whys).values():
        agrees, exact = all(item.agrees for item in items), all(item.budget == 0 for item in items)
        yield Group(max(items, key=badness), len(items), agrees, exact)


def badness(item: ClaimEvidence) -> tuple[float, float]:
    """Return a sort key, largest for the worst comparison; if a claim should break, small errors are worst."""
    share, error = (math.inf if math.isnan(number) else number for number in (item.share, item.error))
    return (share, error) if item.expectation == "holds" else (1 / share if share else math.inf, -error)


def _topics(claims: Iterable[str]) -> dict[str, list[str]]:
    return grouped((claim.partition(".")[0], claim) for claim in dict.fromkeys(claims))


def _in_order(columns: Sequence[Column]) -> list[Column]:
    backends = list(dict.fromkeys(column.backend for column in columns))

    def place(column: Column) -> tuple[int, bool, str, int, str]:
        wide = _DTYPES.index(column.dtype) if column.dtype in _DTYPES else len(_DTYPES)
        return backends.index(column.backend), column.device != "cpu", column.device, wide, column.dtype

    return sorted(columns, key=place)


def name_of(claim: str) -> str:
    """Return `weights` for `attention.weights`."""
    return claim.partition(".")[2] or claim
