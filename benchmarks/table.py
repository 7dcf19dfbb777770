"""What a session of benchmarks prints at its end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from benchmarks.figures import Figures
from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from transparity_conformance.report.comparison import Evidence

LEGEND = (
    "Tokens are those whose logits are computed; FLOPs are those of matrix products, a multiplication and an addition "
    "each. The last column is the share of the error budget that the logits used."
)


@dataclass
class Outcome:
    """What a session has timed, and what it refused to time."""

    timed: list[Figures] = field(default_factory=list)
    refused: list[Evidence] = field(default_factory=list)


@dataclass(frozen=True)
class Printout:
    """The figures, what was refused, and what is absent."""

    outcome: Outcome
    absent: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.outcome.timed:
            yield as_table(self.outcome.timed)
            yield Text(LEGEND, style="dim")
        yield from _list("Not timed, for it does not conform", map(str, self.outcome.refused), "red")
        yield from _list("Absent", self.absent)


def as_table(timed: Iterable[Figures]) -> Table:
    """Preset × shape × backend, the backends of one workload side by side."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("preset", "shape", "backend"):
        table.add_column(name, no_wrap=True)
    for name in ("ms", "tokens/s", "GFLOP/s", "budget"):
        table.add_column(name, justify="right", no_wrap=True)
    for workload, rows in groupby(timed, lambda figures: figures.case.workload):
        named: tuple[str, str] = workload.preset, f"{workload.batch}×{workload.length}"
        for row in rows:
            table.add_row(*named, *_cells(row))
            named = "", ""
    return table


def _cells(row: Figures) -> tuple[str, ...]:
    case = row.case
    where = "" if case.device == "cpu" else f" on {case.device}"
    speed = f"{row.seconds * 1e3:.2f}", f"{row.tokens_per_second:,.0f}", f"{row.gflops_per_second:,.1f}"
    return f"{case.backend} {case.mode}{where}", *speed, f"{row.evidence.share:.0%}"


def _list(title: str, lines: Iterable[str], style: str = "") -> Iterator[RenderableType]:
    given = list(lines)
    if given:
        yield Text(f"{title}: {len(given)}", style=f"bold {style}")
        yield from (Text(f"  {line}", style=style) for line in given)
