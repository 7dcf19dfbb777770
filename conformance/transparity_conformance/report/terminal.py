"""Print to a terminal. The functions import `rich` late, so that messages about wrong usage appear quickly."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from transparity.text import safe

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

PATIENCE = 2.0
"""Seconds before the progress bar appears."""


def print_text(text: RenderableType) -> None:
    """Print without markup, highlighting and trailing spaces."""
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    with console.capture() as written:
        console.print(text, crop=False)  # do not cut lines that are marked as unwrapped
    console.file.write(re.sub(r"(?m) +$", "", written.get()))


def print_line(line: str, indent: int = 0) -> None:
    from rich.padding import Padding
    from rich.text import Text

    print_text(Padding(Text(line), (0, 0, 0, indent), expand=False))


def hanging(first: str, text: str, style: str = "") -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid()
    table.add_row(Text(first, style="cyan"), Text(text, style=style))
    return table


def plain_table(**options: object) -> Table:
    from rich import box
    from rich.table import Table

    return Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)  # type: ignore[arg-type]


@contextmanager
def progress_bar(about: Callable[[], str] = str) -> Iterator[Callable[[str, int, int], None]]:
    """Show a progress bar after `PATIENCE` seconds; `about` returns a text for each step."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    described = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
    bar = Progress(described, BarColumn(12), TimeElapsedColumn(), console=console, transient=True, expand=True)
    task = bar.add_task("", total=None)
    began = time.monotonic()

    def update(description: str, done: int, total: int) -> None:
        if not bar.live.is_started and console.is_terminal and time.monotonic() - began > PATIENCE:
            bar.start()
        doing = f"{description}: {about()}".removesuffix(": ")
        bar.update(task, description=escape(safe(doing)), completed=done, total=total)

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()
