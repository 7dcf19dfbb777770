"""Print the agreement matrix in a terminal: tables that fit the width, footnotes, and what was not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from transparity_conformance.report.agreement.matrix import Cell, Matrix, name_of
from transparity_conformance.report.comparison import Column
from transparity_conformance.report.terminal import hanging

STYLES = {"blank": "dim", "fails": "bold red", "breaks": "cyan"}


def as_table(matrix: Matrix, columns: Sequence[Column] | None = None) -> Table:
    """Return a table with a row for each claim; each cell shows the largest share of the budget that an error uses."""
    columns = matrix.columns if columns is None else columns
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=0, header_style="")
    table.add_column(Text("worst share of the budget", style="dim"), no_wrap=True, vertical="bottom")
    texts = {column: _column_texts(matrix, column, header) for column, header in _headers(columns).items()}
    for column in columns:
        table.add_column(texts[column][""], no_wrap=True)
    for topic, claims in matrix.topics.items():
        table.add_row(Text(topic, style="bold"))
        for claim in claims:
            table.add_row(Text(f" {name_of(claim)}"), *(texts[column][claim] for column in columns))
    return table


def _headers(columns: Sequence[Column]) -> dict[Column, list[str]]:
    headers: dict[Column, list[str]] = {}
    somewhere, family = any(column.device != "cpu" for column in columns), ""
    for column in columns:
        above = [column.backend, column.device] if somewhere else [column.backend]
        first, family = column.family != family, column.family
        headers[column] = [*(above if first else [""] * len(above)), " " * (first and bool(headers)) + column.dtype]
    return headers


def _column_texts(matrix: Matrix, column: Column, header: list[str]) -> dict[str, Text]:
    cells = {claim: matrix.row(claim)[column] for claim in matrix.claims}
    marks = {claim: matrix.mark(claim, cell) for claim, cell in cells.items()}
    room = max(map(len, marks.values()), default=0)
    # Align the cells here, because rich strips trailing spaces in right-aligned columns.
    gap = len(header[-1]) - len(header[-1].lstrip())
    width = max(*map(len, header), *(gap + len(cell.text) + room for cell in cells.values())) - room
    texts = {
        claim: Text.assemble((cell.text.rjust(width), _style(cell)), (marks[claim].ljust(room), "cyan"))
        for claim, cell in cells.items()
    }
    return texts | {"": Text("\n".join(line.rjust(width + room) for line in header))}


def _style(cell: Cell) -> str:
    by_share = "green" if cell.share <= 0.5 else "yellow" if cell.share <= 0.8 else "dark_orange"
    return STYLES.get(cell.kind, by_share)


@dataclass(frozen=True)
class Printout:
    matrix: Matrix

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        matrix = self.matrix
        for columns in _fitting(matrix, console, options) if matrix.cells else ():
            yield as_table(matrix, columns)
            yield ""
        for note in matrix.footnotes:
            yield hanging(f"{note.mark} ", str(note), "" if note.agrees else "bold red")
        yield from _list("Disagreements", [str(group.worst) for group in matrix.disagreements], "red", at_most=20)
        for title, lines in matrix.lists.items():
            yield from _list(title, lines)
        style = {"agrees": "bold green", "diverges": "bold red"}.get(matrix.verdict, "bold yellow")
        yield Text(matrix.summary, style=style)


def _fitting(matrix: Matrix, console: Console, options: ConsoleOptions) -> list[list[Column]]:
    """Split the columns into tables that fit the terminal, by backend if possible."""

    def fits(columns: list[Column]) -> bool:
        wide = options.update(width=10_000)
        return Measurement.get(console, wide, as_table(matrix, columns)).maximum <= options.max_width

    cut: list[list[Column]] = [[]]
    for family in matrix.families.values():
        for columns in [family] if fits(family) else [[column] for column in family]:
            cut = [*cut[:-1], cut[-1] + columns] if not cut[-1] or fits(cut[-1] + columns) else [*cut, columns]
    return cut


def _list(title: str, lines: Sequence[str], style: str = "", at_most: int | None = None) -> Iterator[RenderableType]:
    if lines:
        yield Text(f"{title}: {len(lines)}", style=f"bold {style}")
        yield from (hanging("  ", line, style) for line in lines[:at_most])
    if at_most and len(lines) > at_most:
        yield Text(f"  and {len(lines) - at_most:,} more", style=style)
