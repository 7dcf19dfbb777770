"""The agreement matrix: thousands of comparisons folded into claims × (backend, dtype, device), each cell its worst."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import product
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from transparity.presets import PRESETS
from transparity_conformance.evidence import Evidence, Subject

FORMAT_VERSION = 1
NotCompared = tuple[str, Subject | str, str]
"""A claim, whom it was not made about (a subject, or how one is written), and why."""

_DTYPES = ("float64", "float32", "bfloat16", "float16")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Column:
    """A subject, whatever mode it runs in."""

    backend: str
    dtype: str
    device: str = "cpu"

    @property
    def family(self) -> str:
        """What neighbouring columns have in common: the backend, and where it runs."""
        return self.backend if self.device == "cpu" else f"{self.backend} on {self.device}"

    def __str__(self) -> str:
        where = "" if self.device == "cpu" else f" on {self.device}"
        return f"{self.backend} {self.dtype}{where}"


@dataclass(frozen=True)
class Group:
    """All comparisons of one claim about one subject on one case."""

    worst: Evidence
    comparisons: int
    agrees: bool
    exact: bool

    @property
    def breaks(self) -> bool:
        """Whether the claim is asserted to break here."""
        return self.worst.expectation == "breaks"

    def as_dict(self) -> dict[str, Any]:
        """The worst comparison as JSON values, and how many it stands for."""
        numbers = {name: _number(getattr(self.worst, name)) for name in ("error", "budget", "share")}
        return self.worst.as_dict() | numbers | {"comparisons": self.comparisons, "agrees": self.agrees}


@dataclass(frozen=True)
class Cell:
    """What is known of one claim in one column, over all cases and modes."""

    groups: tuple[Group, ...]

    @cached_property
    def worst(self) -> Evidence | None:
        """The comparison that used most of its budget; none if the claim was only asserted to break."""
        return max((group.worst for group in self.groups if not group.breaks), key=_badness, default=None)

    @property
    def comparisons(self) -> int:
        return sum(group.comparisons for group in self.groups)

    @property
    def agrees(self) -> bool:
        return all(group.agrees for group in self.groups)

    @property
    def exact(self) -> bool:
        """Whether rounding was allowed nowhere."""
        return self.worst is not None and all(group.exact for group in self.groups if not group.breaks)

    @property
    def breaks(self) -> tuple[str, ...]:
        """The cases for which the claim was asserted to break."""
        return tuple(dict.fromkeys(group.worst.case for group in self.groups if group.breaks))


@dataclass(frozen=True)
class Footnote:
    """A mistake that a document prints, and the claims that it breaks there."""

    mark: str
    case: str
    note: str
    groups: tuple[Group, ...]

    @property
    def claims(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(group.worst.claim for group in self.groups))

    def __str__(self) -> str:
        preset = PRESETS.get(self.case)
        # "001, the language model" names a part of a document; its number is enough here
        printed = f"document {preset.document.partition(',')[0]} prints it" if preset else "it is printed"
        note = f": {self.note}" if self.note else ""
        held = [f"{group.worst.claim} ({group.worst.subject})" for group in self.groups if not group.agrees]
        but = f"; FAILS, for it did not break: {', '.join(held)}" if held else ""
        return f"breaks for {self.case}, as {printed}{note}{but}"


@dataclass(frozen=True)
class Matrix:
    """Claims (topic by topic, in order of first appearance) × columns; what was not compared has no cell."""

    claims: tuple[str, ...]
    columns: tuple[Column, ...]
    cells: Mapping[tuple[str, Column], Cell]

    @property
    def groups(self) -> Iterator[Group]:
        return (group for cell in self.cells.values() for group in cell.groups)

    @property
    def verdict(self) -> str:
        """Fail closed: where nothing was compared, nothing agrees."""
        if not self.cells:
            return "inconclusive"
        return "agrees" if all(cell.agrees for cell in self.cells.values()) else "diverges"

    @property
    def disagreements(self) -> list[Group]:
        """What did not go as expected, the worst first."""
        return sorted(
            (group for group in self.groups if not group.agrees), key=lambda g: _badness(g.worst), reverse=True
        )

    @cached_property
    def footnotes(self) -> list[Footnote]:
        """One for each mistake of each document: what breaks for one reason shares a footnote."""
        reasons: dict[tuple[str, str], list[Group]] = defaultdict(list)
        for where in product(self.claims, self.columns):
            for group in self.cells[where].groups if where in self.cells else ():
                if group.breaks:
                    reasons[group.worst.case, group.worst.note].append(group)
        marked = enumerate(reasons.items(), start=1)
        return [Footnote(str(n).translate(_SUPERSCRIPTS), case, note, tuple(gs)) for n, ((case, note), gs) in marked]

    def marks(self, cell: Cell | None) -> str:
        """The marks of the footnotes that speak of `cell`."""
        groups = cell.groups if cell else ()
        reasons = {(group.worst.case, group.worst.note) for group in groups if group.breaks}
        return ",".join(note.mark for note in self.footnotes if (note.case, note.note) in reasons)

    @property
    def topics(self) -> dict[str, list[str]]:
        """The claims of each topic."""
        return _topics(self.claims)


def fold(evidence: Iterable[Evidence]) -> Matrix:
    """The agreement matrix of all that was compared."""
    cells: dict[tuple[str, Column], list[Group]] = defaultdict(list)
    for group in _grouped(evidence):
        cells[group.worst.claim, column_of(group.worst.subject)].append(group)
    claims = [claim for topic in _topics(claim for claim, _ in cells).values() for claim in topic]
    columns = _in_order(dict.fromkeys(column for _, column in cells))
    return Matrix(tuple(claims), tuple(columns), {where: Cell(tuple(groups)) for where, groups in cells.items()})


def column_of(subject: Subject) -> Column:
    """Where `subject` stands in the matrix."""
    return Column(subject.backend, subject.dtype, subject.device)


def _grouped(evidence: Iterable[Evidence]) -> Iterator[Group]:
    members: dict[tuple[str, Subject, str, str], list[Evidence]] = defaultdict(list)
    for item in evidence:
        why = item.note if item.expectation == "breaks" else "holds"
        members[item.claim, item.subject, item.case, why].append(item)
    for items in members.values():
        agrees, exact = all(item.agrees for item in items), all(item.budget == 0 for item in items)
        yield Group(max(items, key=_badness), len(items), agrees, exact)


def _badness(item: Evidence) -> tuple[float, float]:
    """How far it is from what was expected: where a claim has to break, the less it breaks the worse."""
    share, error = (math.inf if math.isnan(number) else number for number in (item.share, item.error))
    return (share, error) if item.expectation == "holds" else (1 / share if share else math.inf, -error)


def _topics(claims: Iterable[str]) -> dict[str, list[str]]:
    topics: dict[str, list[str]] = defaultdict(list)
    for claim in dict.fromkeys(claims):
        topics[topic_of(claim)].append(claim)
    return dict(topics)


def _in_order(columns: Iterable[Column]) -> list[Column]:
    columns = list(columns)
    backends = list(dict.fromkeys(column.backend for column in columns))

    def place(column: Column) -> tuple[int, bool, str, int, str]:
        wide = _DTYPES.index(column.dtype) if column.dtype in _DTYPES else len(_DTYPES)
        return backends.index(column.backend), column.device != "cpu", column.device, wide, column.dtype

    return sorted(columns, key=place)


# In words


def topic_of(claim: str) -> str:
    """`attention` of `attention.weights`."""
    return claim.partition(".")[0]


def name_of(claim: str) -> str:
    """`weights` of `attention.weights`."""
    return claim.partition(".")[2] or claim


def percent(share: float) -> str:
    """A share of a budget that is kept, to two significant digits."""
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{_two_digits(100 * share)} %"


def times(share: float) -> str:
    """A share of a budget that is not kept: never written as 1."""
    if not math.isfinite(share):
        return "∞"
    if share < 1.05:
        return ">1×"
    return f"{share:.0e}×".replace("e+0", "e").replace("e+", "e") if share >= 9999.5 else _two_digits(share) + "×"


def _two_digits(number: float) -> str:
    return f"{number:#.2g}" if 0 < number < 9.95 else f"{number:.0f}"


def share_in_words(share: float) -> str:
    """`43 %`, or `3.2×` if it is more than all of it."""
    return percent(share) if share <= 1 else times(share)


def cell_in_words(cell: Cell | None) -> str:
    """`43 %`, `exact`, `FAILS 3.2×`, `breaks` (as the document prints it), or `·` where nothing was compared."""
    if cell is None:
        return "·"
    if not cell.agrees:
        # neither an exact claim nor one that should have broken has a budget to be a multiple of
        worst = None if cell.exact else cell.worst
        return "FAILS" if worst is None or worst.agrees else f"FAILS {times(worst.share)}"
    if cell.worst is None:
        return "breaks"
    return "exact" if cell.exact else percent(cell.worst.share)


def summary(matrix: Matrix, skipped: Sequence[str] = (), not_compared: Sequence[NotCompared] = ()) -> str:
    """The matrix in one line."""
    return "; ".join([*extent(matrix, skipped, not_compared), verdict_in_words(matrix)])


def extent(matrix: Matrix, skipped: Sequence[str] = (), not_compared: Sequence[NotCompared] = ()) -> list[str]:
    """How much was compared, the worst of it, and how much was not."""
    backends = len({column.backend for column in matrix.columns})
    comparisons = sum(cell.comparisons for cell in matrix.cells.values())
    counts = [_count(len(matrix.claims), "claim"), _count(comparisons, "comparison")]
    parts = [f"{', '.join(counts)} over {_count(backends, 'backend')}"]
    worst = max((cell.worst for cell in matrix.cells.values() if cell.worst), key=_badness, default=None)
    if worst is not None and worst.share != 0:
        place = f"{worst.claim}, {worst.subject}, {worst.case}: {worst.where}"
        parts.append(f"worst share {share_in_words(worst.share)} ({place})")
    left_out = ((skipped, "skipped"), (not_compared, "not compared"))
    return parts + [f"{len(items):,} {what}" for items, what in left_out if items]


def verdict_in_words(matrix: Matrix) -> str:
    """`all agree`, how many claims fail, or that there is nothing to go by."""
    failing = {group.worst.claim for group in matrix.disagreements}
    if failing:
        return f"{len(failing)} of {_count(len(matrix.claims), 'claim')} FAIL" + ("S" if len(failing) == 1 else "")
    return "all agree" if matrix.cells else "nothing was compared"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def not_compared_in_words(not_compared: Sequence[NotCompared]) -> list[str]:
    """One line for each reason: the claims, and whom they were not made about."""
    subjects: dict[tuple[str, str], list[str]] = defaultdict(list)
    for claim, subject, reason in not_compared:
        subjects[claim, reason].append(str(subject))
    claims: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (claim, reason), names in subjects.items():
        claims[", ".join(dict.fromkeys(names)), reason].append(claim)
    return [f"{', '.join(names)} ({whom}): {reason}" for (whom, reason), names in claims.items()]


# In a terminal


def as_table(matrix: Matrix, columns: Sequence[Column] | None = None) -> Table:
    """Claims × `columns` (by default all): of each cell, the worst share of its budget."""
    columns = matrix.columns if columns is None else columns
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0, header_style="")
    table.add_column(Text("worst share of the budget", style="dim"), no_wrap=True, vertical="bottom")
    texts = {column: _column_of_text(matrix, column, header) for column, header in _headers(columns).items()}
    for column in columns:
        table.add_column(texts[column][""], no_wrap=True)
    for topic, claims in matrix.topics.items():
        table.add_row(Text(topic, style="bold"))
        for claim in claims:
            table.add_row(Text(f" {name_of(claim)}"), *(texts[column][claim] for column in columns))
    return table


def _headers(columns: Sequence[Column]) -> dict[Column, list[str]]:
    """Backend, device (if any is not the CPU) and dtype; the first two once for each family of columns."""
    headers: dict[Column, list[str]] = {}
    somewhere, family = any(column.device != "cpu" for column in columns), ""
    for column in columns:
        above = [column.backend, column.device] if somewhere else [column.backend]
        first, family = column.family != family, column.family
        headers[column] = [*(above if first else [""] * len(above)), " " * (first and bool(headers)) + column.dtype]
    return headers


def _column_of_text(matrix: Matrix, column: Column, header: list[str]) -> dict[str, Text]:
    """The cells of a column by claim, its header by "": to the right, with room for marks so that numbers align."""
    cells = {claim: matrix.cells.get((claim, column)) for claim in matrix.claims}
    words = {claim: (cell_in_words(cell), matrix.marks(cell)) for claim, cell in cells.items()}
    room = max((len(mark) for _, mark in words.values()), default=0)
    # rich would strip what follows a number in a column aligned to the right, so they are aligned here
    gap = len(header[-1]) - len(header[-1].lstrip())
    width = max(*map(len, header), *(gap + len(text) + room for text, _ in words.values())) - room
    texts = {
        claim: Text.assemble((text.rjust(width), _style(cells[claim])), (mark.ljust(room), "cyan"))
        for claim, (text, mark) in words.items()
    }
    return texts | {"": Text("\n".join(line.rjust(width + room) for line in header))}


def _style(cell: Cell | None) -> str:
    if cell is None:
        return "dim"
    if not cell.agrees:
        return "bold red"
    if cell.worst is None:
        return "cyan"
    share = cell.worst.share
    return "green" if share <= 0.5 else "yellow" if share <= 0.8 else "dark_orange"


@dataclass(frozen=True)
class Printout:
    """What a session prints at its end, in as many tables as the width of the terminal asks for."""

    matrix: Matrix
    skipped: Sequence[str] = ()
    not_compared: Sequence[NotCompared] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        for columns in _fitting(self.matrix, console, options) if self.matrix.cells else ():
            yield as_table(self.matrix, columns)
            yield ""
        for note in self.matrix.footnotes:
            style = "" if all(group.agrees for group in note.groups) else "bold red"
            yield _hanging(f"{note.mark} ", str(note), style)
        yield from _list("Disagreements", [str(group.worst) for group in self.matrix.disagreements], "red", at_most=20)
        yield from _list("Not compared", not_compared_in_words(self.not_compared))
        yield from _list("Skipped", self.skipped)
        style = {"agrees": "bold green", "diverges": "bold red"}.get(self.matrix.verdict, "bold yellow")
        yield Text(summary(self.matrix, self.skipped, self.not_compared), style=style)


def _fitting(matrix: Matrix, console: Console, options: ConsoleOptions) -> list[list[Column]]:
    """The columns, cut where a table would grow wider than the terminal: between two families if that will do."""
    families: dict[str, list[Column]] = defaultdict(list)
    for column in matrix.columns:
        families[column.family].append(column)

    def fits(columns: list[Column]) -> bool:
        wide = options.update(width=10_000)
        return Measurement.get(console, wide, as_table(matrix, columns)).maximum <= options.max_width

    cut: list[list[Column]] = [[]]
    for family in families.values():
        for columns in [family] if fits(family) else [[column] for column in family]:
            cut = [*cut[:-1], cut[-1] + columns] if not cut[-1] or fits(cut[-1] + columns) else [*cut, columns]
    return cut


def _list(title: str, lines: Sequence[str], style: str = "", at_most: int | None = None) -> Iterator[RenderableType]:
    if lines:
        yield Text(f"{title}: {len(lines)}", style=f"bold {style}")
        yield from (_hanging("  ", line, style) for line in lines[:at_most])
    if at_most and len(lines) > at_most:
        yield Text(f"  and {len(lines) - at_most:,} more", style=style)


def _hanging(first: str, text: str, style: str = "") -> Table:
    """A paragraph whose lines after the first are indented."""
    table = Table.grid()
    table.add_row(Text(first, style="cyan"), Text(text, style=style))
    return table


# For machines


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
        "share": None if cell.worst is None else _number(cell.worst.share),
        "comparisons": cell.comparisons,
        "worst": None if cell.worst is None else Group(cell.worst, 1, cell.worst.agrees, cell.exact).as_dict(),
        "breaks": list(cell.breaks),
    }


def _footnote_as_json(note: Footnote) -> dict[str, Any]:
    agrees = all(group.agrees for group in note.groups)
    fields = {"case": note.case, "note": note.note, "claims": list(note.claims), "agrees": agrees}
    return fields | {"says": f"{note}"}


def _number(value: float) -> float | str:
    """JSON has no infinity, so it is the string `"inf"`; so is NaN, which counts as infinitely wrong."""
    return float(value) if math.isfinite(value) else "inf"


def _strict(value: Any) -> Any:
    """`value` as JSON values; what JSON has no word for, as text."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)
