"""The plots of a race: throughput, the roofline, growth with length and batch, and the latency of decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from benchmarks.race.report import Report
from benchmarks.race.standings import Quartiles, Standing
from benchmarks.workloads import Workload
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter

COLOURS = {
    "torch, eager": "#d1495b",
    "compiled": "#e08e45",
    "jax, jit": "#1d6f93",
    "numpy": "#4f8a5b",
}
GREY, FAINT, INK = "#8d99ae", "#e5e8ee", "#22262e"
PALER = 0.45
"""The opacity of a peer's colour; ours are opaque."""

MARKS = "osD^vP*X"

STYLE: dict[Any, Any] = {
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "grid.color": FAINT,
}

GROWN_BY = {"length": "tokens in the one row of the batch", "batch": "rows of 128 tokens"}
"""The curves, and the labels of their x axes."""


def plots(report: Report) -> Iterator[tuple[str, str, Figure]]:
    """The name, the caption and the figure of each plot."""
    found = {workload.name: (workload, ran(rows)) for workload, rows in report.by_workload()}
    for name, (workload, rows) in found.items():
        if rows and not workload.growth:
            yield f"throughput-{name}", f"Throughput, {name}", throughput(rows)
    if decoding := {name: rows for name, (workload, rows) in found.items() if workload.kind == "decode" and rows}:
        yield "decoding", "Latency of a token in greedy decoding", latency(decoding)
    for curve in GROWN_BY:
        if growing := [(workload, rows) for workload, rows in found.values() if workload.growth == curve and rows]:
            yield f"growth-{curve}", f"Growth with {curve}", growth(growing, curve)
    if roof := roofline(report):
        yield "roofline", "Roofline: what the machine allows, and what was reached", roof


def ran(rows: Sequence[Standing]) -> list[Standing]:
    """The rows that have figures, without the limits."""
    return [row for row in rows if row.seconds and not row.candidate.is_limit]


def throughput(rows: Sequence[Standing]) -> Figure:
    """Tokens a second with quartiles, a bar for each candidate, and the share of the limit."""
    figure, axes = _canvas(1.1 + 0.28 * len(rows))
    rows = list(reversed(rows))
    for at, row in enumerate(rows):
        value = row.tokens_per_second
        assert value is not None
        _bar(axes, at, row, value)
        share = f"  {row.share.middle:.0%}" if row.share else ""
        axes.text(value.high, at, share, va="center", fontsize=8, color=INK)
    _name_rows(axes, rows)
    axes.set_xlabel("tokens a second, and the share of the limit")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.margins(x=0.1, y=0.02)
    _legend(axes, rows)
    return figure


def latency(decoding: dict[str, list[Standing]]) -> Figure:
    """Milliseconds a token, a panel for each batch, and the time that reading the weights takes."""
    most = max(map(len, decoding.values()))
    figure, panels = _canvas(1.3 + 0.3 * most, len(decoding))
    for axes, name in zip(np.atleast_1d(panels), decoding, strict=True):
        rows = list(reversed(decoding[name]))
        for at, row in enumerate(rows):
            assert row.seconds is not None
            each = row.seconds.times(1e3 / row.workload.new_tokens)
            _bar(axes, at, row, each)
        if (first := rows[0]).share and first.seconds:
            bound = first.share.middle * first.seconds.middle * 1e3 / first.workload.new_tokens
            axes.axvline(bound, color=INK, lw=1, ls=(0, (4, 3)))
            axes.text(bound, len(rows) - 0.3, " bound by memory", fontsize=8, color=INK, va="center")
            axes.set_ylim(-0.6, len(rows))
        _name_rows(axes, rows)
        axes.set_xlabel("ms a token")
        axes.set_title(f"{name} (batch {first.workload.batch})", fontsize=10, loc="left")
    return figure


def growth(points: Sequence[tuple[Workload, list[Standing]]], curve: str) -> Figure:
    """Milliseconds by length or batch, a line for each candidate."""
    figure, axes = _canvas(5.2)
    lines: dict[str, list[Standing]] = {}
    for _, rows in points:
        for row in rows:
            lines.setdefault(row.candidate.name, []).append(row)
    marks: dict[str, int] = {}
    for name, rows in sorted(lines.items(), key=lambda item: list(COLOURS).index(item[1][0].candidate.kinds[0])):
        kind, ours = rows[0].candidate.kinds[0], rows[0].candidate.ours
        marks[kind] = marks.get(kind, -1) + 1
        sizes = [row.workload.batch if curve == "batch" else max(row.workload.lengths.values()) for row in rows]
        times = [row.seconds.middle * 1e3 for row in rows if row.seconds]
        style: dict[str, Any] = {"lw": 2.2, "ls": "-"} if ours else {"lw": 1.0, "ls": (0, (5, 2)), "alpha": 0.8}
        mark = MARKS[marks[kind] % len(MARKS)]
        axes.plot(sizes, times, marker=mark, ms=5, color=COLOURS[kind], label=name, **style)
    axes.set_xscale("log", base=2)
    _logarithmic(axes, GROWN_BY[curve], "ms")
    return figure


def roofline(report: Report) -> Figure | None:
    """In float32, GFLOP/s by FLOPs for each byte of weights, below the machine's two limits."""
    rows = [row for row in report.rows if row.workload.dtype == "float32" and not row.workload.growth]
    roof, slope = highest_limit(rows, of_memory=False), highest_limit(rows, of_memory=True)
    ours = [row for row in ran(rows) if row.candidate.ours]
    if not (roof and slope and ours):
        return None
    figure, axes = _canvas(5.2)
    _limits(axes, roof, slope, [intensity(row.workload) for row in ours])
    names = list(dict.fromkeys(row.workload.name for row in ours))
    for name, mark in zip(names, MARKS * len(names), strict=False):
        for row in (row for row in ours if row.workload.name == name):
            color = COLOURS[row.candidate.kinds[0]]
            axes.plot(intensity(row.workload), row.gflops or 0, mark, ms=7, color=color, mec="white")
        axes.plot([], [], mark, color=GREY, label=name, ls="")
    for kind in dict.fromkeys(row.candidate.kinds[0] for row in ours):
        axes.plot([], [], "s", color=COLOURS[kind], label=f"ours: {kind}", ls="")
    axes.set_xscale("log")
    _logarithmic(axes, "FLOPs for each byte of weights that has to be read", "GFLOP/s")
    return figure


def highest_limit(rows: Sequence[Standing], *, of_memory: bool) -> float:
    """The most FLOPs a second, or bytes of memory; 0 if none was measured."""
    limits = [row for row in rows if row.candidate.is_limit and (row.workload.kind == "decode") == of_memory]
    return max((row.per_second.middle for row in limits if row.per_second), default=0)


def _limits(axes: Axes, roof: float, slope: float, intensities: Sequence[float]) -> None:
    """The matrix product is the roof, the pass over memory the slope."""
    ends = min(intensities) / 2, max(roof / slope, *intensities) * 2
    at = sorted([*ends, roof / slope])
    axes.plot(at, [min(roof, slope * x) / 1e9 for x in at], color=INK, lw=1.4)
    axes.text(ends[1], roof / 1e9, f"matrix product, {roof / 1e9:,.0f} GFLOP/s ", ha="right", va="bottom", fontsize=8)
    middle = (ends[0] * roof / slope) ** 0.5  # above the slope, where no column can be
    axes.text(middle, slope * middle / 1e9, f"memory, {slope / 1e9:,.1f} GB/s  ", ha="right", va="bottom", fontsize=8)


def _logarithmic(axes: Axes, x: str, y: str) -> None:
    """A logarithmic y axis, labels, a grid, and the legend beside the plot."""
    axes.set_yscale("log")
    _plain_numbers(axes)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(which="major")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def intensity(workload: Workload) -> float:
    """FLOPs for each byte of weights; they are read once by a pass, once for each token by decoding, and three times
    by a training step."""
    size = 2 if workload.dtype == "bfloat16" else 4
    read = workload.bytes_read or workload.weights * size * (3 * workload.steps or 1)
    return workload.flops / read


def save(report: Report, folder: Path) -> list[tuple[str, str]]:
    """Write every plot as a PNG into `folder`, and return their file names and captions."""
    saved = []
    with mpl.rc_context(STYLE):
        for name, caption, figure in plots(report):
            figure.savefig(folder / f"{name}.png", dpi=150)
            saved.append((f"{name}.png", caption))
    return saved


def _canvas(height: float, columns: int = 1) -> tuple[Figure, Any]:
    """Return a figure and its axes, several side by side."""
    figure = Figure(figsize=(9, height))
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, axes[0] if columns == 1 else axes


def _plain_numbers(axes: Axes) -> None:
    """Label logarithmic axes with 400, not 4 × 10², and between the powers where there is room."""
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))


def _bar(axes: Axes, at: int, row: Standing, value: Quartiles) -> None:
    error = [[value.middle - value.low], [value.high - value.middle]]
    style: dict[str, Any] = {"color": COLOURS[row.candidate.kinds[0]], "alpha": 1.0 if row.candidate.ours else PALER}
    axes.barh(at, value.middle, xerr=error, ecolor=INK, error_kw={"lw": 0.8}, **style, height=0.72)


def _name_rows(axes: Axes, rows: Sequence[Standing]) -> None:
    axes.set_yticks(range(len(rows)), [row.candidate.name for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.candidate.ours else "normal")


def _legend(axes: Axes, rows: Sequence[Standing]) -> None:
    for kind in dict.fromkeys(row.candidate.kinds[0] for row in reversed(rows)):
        axes.barh([0], [0], color=COLOURS[kind], label=kind)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
