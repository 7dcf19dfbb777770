"""The table of a race for the terminal, and a shorter table for pages of the documentation."""

from collections.abc import Callable, Sequence
from itertools import groupby

from benchmarks.race.rows import Quartiles, Row
from benchmarks.workloads import Workload
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

LEGEND = (
    "Figures are medians of the rounds, with quartiles in brackets where there is room. FLOPs count matrix products; a "
    "training step counts as three forward passes. The limit is the fastest matrix product of any library in the same "
    "rounds. For decoding, the limit is the fastest pass over memory, which reads the weights once for each token. The "
    "ratio divides the candidate's speed by the speed of the best peer of its kind in the same round. If the kind has "
    "no peer, the best peer of any kind counts. “Of budget” is the share of the error budget that the result uses. "
    "“First” is the first call with compilation. “Peak” is the most memory in use until the end of the first call, "
    "including the given weights. On a GPU, only the GPU's memory counts."
)

WIDE = 130
"""The smallest terminal width at which a table shows quartiles."""

Between = Callable[[Quartiles | None, str], str]


def _time(row: Row, between: Between) -> str:
    taken = None if row.is_limit or not row.seconds else row.seconds.times(1e3)
    return between(taken, "{:.3g}" if taken and taken.middle < 100 else "{:,.0f}")


def _rate(row: Row, between: Between) -> str:
    reads = row.is_limit and row.task.kind == "decode"
    return "" if row.gigas is None else f"{row.gigas:,.1f}" + " GB/s" * reads


CELLS: dict[str, Callable[[Row, Between], str]] = {
    "ms": _time,
    "tokens /s": lambda row, _: f"{row.tokens_per_second.middle:,.0f}" if row.tokens_per_second else "",
    "GFLOP /s": _rate,
    "of the limit": lambda row, between: between(row.share, "{:.0%}"),
    "to best peer": lambda row, between: between(row.ratio, "{:.2f}"),
    "of budget": lambda row, _: f"{row.conformity['share']:.0%}" if row.conformity else "",
    "first s": lambda row, _: f"{row.first_seconds:.3g}" if row.first_seconds else "",
    "import s": lambda row, _: f"{row.import_seconds:.3g}" if row.import_seconds else "",
    "peak GB": lambda row, _: f"{row.peak_bytes / 1e9:.3g}" if row.peak_bytes else "",
}


def _middle(value: Quartiles | None, form: str) -> str:
    return "" if value is None else form.format(value.middle)


def _range(value: Quartiles | None, form: str) -> str:
    return "" if value is None else f"{form} [{form}–{form}]".format(value.middle, value.low, value.high)


def as_text(rows: Sequence[Row], width: int) -> Group:
    """Return the tables, the failures and the legend; quartiles are left out if `width` is too small."""
    parts: list[RenderableType] = []
    for _, group in groupby(rows, lambda row: row.workload):
        of_workload = list(group)
        parts.append(as_table(of_workload, quartiles=width >= WIDE))
        failed = [row for row in of_workload if row.failed]
        parts += [Text(f"{row.candidate}: not timed, {row.failed}", style="red") for row in failed]
    return Group(*parts, Text(LEGEND, style="dim"))


def as_table(rows: Sequence[Row], *, quartiles: bool) -> Table:
    table = Table(title=title(rows[0].task), box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.title_justify = "left"
    table.padding = (0, int(quartiles), 0, 0)
    table.add_column("candidate", no_wrap=True)
    for name in CELLS:
        table.add_column(name if quartiles else name.replace(" ", "\n"), justify="right", no_wrap=quartiles)
    for kind, of_kind in groupby((row for row in rows if not row.failed), lambda row: row.kind):
        table.add_row(Text(kind, style="bold"))
        for row in of_kind:
            label = Text(row.candidate, style="green" if row.ours else "")
            table.add_row(label, *(cell(row, _range if quartiles else _middle) for cell in CELLS.values()))
        table.add_section()
    return table


def title(workload: Workload) -> str:
    config, shapes = workload.config, " → ".join(str(length) for length in workload.lengths.values())
    layers = f"{config.num_encoder_layers}+" * config.has_encoder + str(config.num_decoder_layers)
    task = {
        "forward": "a forward pass",
        "decode": f"{workload.new_tokens} tokens by greedy decoding with a cache",
        "train": f"{workload.steps} steps of AdamW",
    }[workload.kind]
    return (
        f"{workload.name}: {task}, {workload.batch}×{shapes}, {workload.dtype} "
        f"({config.architecture}, {layers} layers, {config.embed_dim} features, {config.num_heads} heads, "
        f"{config.feed_forward_dim} hidden, vocabulary {config.vocab_size:,})"
    )


def as_markdown(rows: Sequence[Row]) -> str:
    """Return a Markdown table of our implementations, without the workloads that are points of a growth plot."""
    lines = ["| workload | column | ms | of the limit | as fast as the best peer |", "|---|---|--:|--:|:--|"]
    before = None
    for row in rows:
        if row.ours and row.seconds and not row.task.growth:
            name = "" if row.workload == before else f"`{row.workload}`"
            ratio = f"{row.ratio.middle:.2f} × {row.best_peer}" if row.ratio else ""
            share = CELLS["of the limit"](row, _middle).replace("%", " %")
            time = f"{row.seconds.middle * 1e3:,.{0 if row.seconds.middle >= 0.01 else 2}f}"
            lines.append(f"| {name} | {row.candidate} | {time} | {share} | {ratio} |")
            before = row.workload
    return "\n".join(lines)
