"""The agreement matrix in a terminal: as many tables as its width asks for, and what there is to say about them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from transparity_conformance.report.formatting import cell_in_words, not_compared_in_words, summary
from transparity_conformance.report.matrix import Cell, Column, Matrix, NotCompared, name_of


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
