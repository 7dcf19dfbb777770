"""Text for a terminal: plain lines, tables and paragraphs with a hanging indent."""

from __future__ import annotations

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text


def print_text(text: RenderableType) -> None:
    """Print to standard output, without markup or highlighting."""
    Console(highlight=False, markup=False).print(text)


def print_line(line: str, indent: int = 0) -> None:
    """Print a paragraph whose lines are all indented."""
    print_text(Padding(Text(line), (0, 0, 0, indent), expand=False))


def hanging(first: str, text: str, style: str = "") -> Table:
    """A paragraph whose lines after the first are indented."""
    table = Table.grid()
    table.add_row(Text(first, style="cyan"), Text(text, style=style))
    return table


def plain_table(**options: object) -> Table:
    """A table with one line, below its header."""
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)  # type: ignore[arg-type]
