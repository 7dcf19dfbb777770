"""The tables of a race on the terminal; the HTML page has the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from benchmarks.race.report import Report
from benchmarks.race.standings import Quartiles, Standing
from benchmarks.workloads import Workload
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

LEGEND = (
    "Medians of the rounds, in brackets (where there is room) their quartiles. FLOPs are those of matrix products; "
    "a training step counts three forward passes. The limit is the fastest matrix product of any library in the "
    "same rounds; for decoding it is the fastest pass over memory, and the share is the time to read the weights once "
    "for each token. The ratio is to the best peer of the kind (of any kind, if the kind has none), round by round: "
    "above 1 is faster. “Of budget” is the share of the error budget that is used; decoding has to generate the same "
    "tokens as float64, and “own” marks a peer that cannot hold the weights and is not compared. “First” is the first "
    "call with compilation; “peak” is the most memory used until then (a GPU's, if it computes), the given weights "
    "included."
)

HEADING = ("ms", "tokens /s", "GFLOP /s", "of the limit", "to best peer", "of budget", "first s", "import s", "peak GB")
"""The columns after the name."""

WIDE = 130
"""The width from which a table shows quartiles."""


def as_text(report: Report, width: int) -> Group:
    """The tables, the failures, the legend, and the missing candidates; without quartiles, if `width` is too small."""
    quartiles = width >= WIDE
    parts: list[RenderableType] = []
    for workload, rows in report.by_workload():
        parts.append(as_table(workload, rows, quartiles=quartiles))
        failed = [row for row in rows if row.failed]
        parts += [Text(f"{row.candidate.name}: not timed, {row.failed}", style="red") for row in failed]
    parts.append(Text(LEGEND, style="dim"))
    if report.absent:
        parts.append(Text(f"Missing: {len(report.absent)}", style="bold"))
        parts += [Text(f"  {line}") for line in report.absent]
    return Group(*parts)


def as_table(workload: Workload, rows: Sequence[Standing], *, quartiles: bool) -> Table:
    """The candidates that were timed on one workload, kind by kind."""
    table = Table(title=title(workload), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title_justify = "left"
    table.padding = (0, int(quartiles), 0, 0)
    table.add_column("candidate", no_wrap=True)
    for name in HEADING:
        table.add_column(name if quartiles else name.replace(" ", "\n"), justify="right", no_wrap=quartiles)
    timed = [row for row in rows if not row.failed]
    for kind, of_kind in groupby(timed, lambda row: row.candidate.kinds[0]):
        table.add_row(Text(kind, style="bold"))
        for row in of_kind:
            label = Text(row.candidate.name, style="green" if row.candidate.ours else "")
            table.add_row(label, *cells(row, quartiles=quartiles))
        table.add_section()
    return table


def title(workload: Workload) -> str:
    """The task and its sizes."""
    config, shapes = workload.config, " → ".join(str(length) for length in workload.lengths.values())
    layers = f"{config.num_encoder_layers}+" * config.has_encoder + str(config.num_decoder_layers)
    task = {
        "forward": "a forward pass",
        "decode": f"{workload.new_tokens} tokens, greedily, with a cache",
        "train": f"{workload.steps} steps of AdamW",
    }[workload.kind]
    return (
        f"{workload.name}: {task}, {workload.batch}×{shapes}, {workload.dtype} "
        f"({config.architecture}, {layers} layers, {config.embed_dim} features, {config.num_heads} heads, "
        f"{config.feed_forward_dim} hidden, vocabulary {config.vocab_size:,})"
    )


def cells(row: Standing, *, quartiles: bool = True) -> list[str]:
    """The cells after the name."""
    between = _range if quartiles else _middle
    ready = row.ready
    limits_bytes = row.candidate.is_limit and row.workload.kind == "decode"
    rate = f"{row.per_second.middle / 1e9:,.1f}" if row.candidate.is_limit and row.per_second else _number(row.gflops)
    taken = None if row.candidate.is_limit or not row.seconds else row.seconds.times(1e3)
    return [
        between(taken, "{:.3g}" if taken and taken.middle < 100 else "{:.0f}"),
        f"{row.tokens_per_second.middle:,.0f}" if row.tokens_per_second else "",
        f"{rate} GB/s" if limits_bytes else rate,
        between(row.share, "{:.0%}"),
        between(row.ratio, "{:.2f}"),
        row.conformity,
        f"{ready['first_seconds']:.3g}",
        f"{ready['import_seconds']:.3g}",
        f"{(ready.get('device_peak_bytes') or ready['peak_bytes']) / 1e9:.3g}",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _middle(value: Quartiles | None, form: str) -> str:
    return "" if value is None else form.format(value.middle)


def _range(value: Quartiles | None, form: str) -> str:
    if value is None:
        return ""
    return f"{form} [{form}–{form}]".format(value.middle, value.low, value.high)
