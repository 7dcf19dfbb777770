"""The plots of a race: throughput, roofline, time by input length and by batch size, latency of decoding."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from benchmarks.race.rows import Quartiles, Row
from benchmarks.workloads import WORKLOADS, Workload
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter

COLOURS = {"torch, eager": "#d1495b", "compiled": "#e08e45", "jax, jit": "#1d6f93", "numpy": "#4f8a5b"}
GREY, FAINT, INK = "#8d99ae", "#e5e8ee", "#22262e"
PALER = 0.45
"""The opacity of peers' bars; the bars of the project's implementations are opaque."""

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

GROWN_BY = {"length": "tokens, in a batch of one row", "batch": "rows of 128 tokens"}


def plots(rows: Sequence[Row]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    found: dict[str, list[Row]] = {}
    for row in ran(rows):
        found.setdefault(row.workload, []).append(row)
    for name, of_workload in found.items():
        if not WORKLOADS[name].growth:
            yield f"throughput-{name}", partial(throughput, of_workload)
    if decoding := {name: found[name] for name in found if WORKLOADS[name].kind == "decode"}:
        yield "decoding", partial(latency, decoding)
    for curve in GROWN_BY:
        if growing := [row for row in ran(rows) if row.task.growth == curve]:
            yield f"growth-{curve}", partial(growth, growing, curve)
    timed = [row for row in rows if row.seconds and row.task.dtype == "float32" and not row.task.growth]
    roof, slope = (highest_limit(timed, of_memory=of_memory) for of_memory in (False, True))
    if roof and slope and (ours := [row for row in ran(timed) if row.ours]):
        yield "roofline", partial(roofline, ours, roof, slope)


def ran(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.seconds and not row.is_limit]


def throughput(rows: Sequence[Row]) -> Figure:
    """Plot a bar of tokens per second for each candidate, with quartiles and the speed as a share of the limit."""
    figure, axes = _canvas(1.1 + 0.28 * len(rows))
    rows = list(reversed(rows))
    for at, row in enumerate(rows):
        value = row.tokens_per_second
        assert value is not None
        _bar(axes, at, row, value)
        share = f"  {row.share.middle:.0%}" if row.share else ""
        axes.text(value.high, at, share, va="center", fontsize=8, color=INK)
    _name_rows(axes, rows)
    axes.set_xlabel("tokens per second, and the share of the limit")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.margins(x=0.1, y=0.02)
    for kind in dict.fromkeys(row.kind for row in reversed(rows)):
        axes.barh([0], [0], color=COLOURS[kind], label=kind)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=4)
    return figure


def latency(decoding: dict[str, list[Row]]) -> Figure:
    """Plot milliseconds per token, with a panel for each workload and a line for the time of reading the weights."""
    most = max(map(len, decoding.values()))
    figure, panels = _canvas(1.3 + 0.3 * most, len(decoding))
    for axes, name in zip(np.atleast_1d(panels), decoding, strict=True):
        rows = list(reversed(decoding[name]))
        for at, row in enumerate(rows):
            assert row.seconds is not None
            _bar(axes, at, row, row.seconds.times(1e3 / row.task.new_tokens))
        if (first := rows[0]).share and first.seconds:
            bound = first.share.middle * first.seconds.middle * 1e3 / first.task.new_tokens
            axes.axvline(bound, color=INK, lw=1, ls=(0, (4, 3)))
            axes.text(bound, len(rows) - 0.3, " bound by memory", fontsize=8, color=INK, va="center")
            axes.set_ylim(-0.6, len(rows))
        _name_rows(axes, rows)
        axes.set_xlabel("ms per token")
        axes.set_title(f"{name} (batch {first.task.batch})", fontsize=10, loc="left")
    return figure


def growth(points: Sequence[Row], curve: str) -> Figure:
    """Plot milliseconds by input length or batch size, with a line for each candidate."""
    figure, axes = _canvas(5.2)
    lines: dict[str, list[Row]] = {}
    for row in points:
        lines.setdefault(row.candidate, []).append(row)
    marks: dict[str, int] = {}
    for name, rows in sorted(lines.items(), key=lambda item: list(COLOURS).index(item[1][0].kind)):
        kind, ours = rows[0].kind, rows[0].ours
        marks[kind] = marks.get(kind, -1) + 1
        sizes = [row.task.batch if curve == "batch" else max(row.task.lengths.values()) for row in rows]
        times = [row.seconds.middle * 1e3 for row in rows if row.seconds]
        style: dict[str, Any] = {"lw": 2.2, "ls": "-"} if ours else {"lw": 1.0, "ls": (0, (5, 2)), "alpha": 0.8}
        mark = MARKS[marks[kind] % len(MARKS)]
        axes.plot(sizes, times, marker=mark, ms=5, color=COLOURS[kind], label=name, **style)
    axes.set_xscale("log", base=2)
    _logarithmic(axes, GROWN_BY[curve], "ms")
    return figure


def roofline(ours: Sequence[Row], roof: float, slope: float) -> Figure:
    """Plot GFLOP/s in float32 by FLOPs per byte of weights, with the machine's limits for products and for memory."""
    figure, axes = _canvas(5.2)
    _limits(axes, roof, slope, [intensity(row.task) for row in ours])
    names = list(dict.fromkeys(row.workload for row in ours))
    for name, mark in zip(names, MARKS * len(names), strict=False):
        for row in (row for row in ours if row.workload == name):
            color = COLOURS[row.kind]
            axes.plot(intensity(row.task), row.gigas or 0, mark, ms=7, color=color, mec="white")
        axes.plot([], [], mark, color=GREY, label=name, ls="")
    for kind in dict.fromkeys(row.kind for row in ours):
        axes.plot([], [], "s", color=COLOURS[kind], label=f"ours: {kind}", ls="")
    axes.set_xscale("log")
    _logarithmic(axes, "FLOPs per byte of weights", "GFLOP/s")
    return figure


def highest_limit(rows: Sequence[Row], *, of_memory: bool) -> float:
    """Return the highest measured limit in FLOPs (or bytes, if `of_memory`) per second; 0 without a measurement."""
    limits = [row for row in rows if row.is_limit and (row.task.kind == "decode") == of_memory]
    return max((row.gigas * 1e9 for row in limits if row.gigas), default=0)


def _limits(axes: Axes, roof: float, slope: float, intensities: Sequence[float]) -> None:
    ends = min(intensities) / 2, max(roof / slope, *intensities) * 2
    at = sorted([*ends, roof / slope])
    axes.plot(at, [min(roof, slope * x) / 1e9 for x in at], color=INK, lw=1.4)
    axes.text(ends[1], roof / 1e9, f"matrix product, {roof / 1e9:,.0f} GFLOP/s ", ha="right", va="bottom", fontsize=8)
    middle = (ends[0] * roof / slope) ** 0.5  # above the slope, where no candidate can be
    axes.text(middle, slope * middle / 1e9, f"memory, {slope / 1e9:,.1f} GB/s  ", ha="right", va="bottom", fontsize=8)


def _logarithmic(axes: Axes, x: str, y: str) -> None:
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):  # plain numbers such as 400, also between powers of ten on the vertical axis
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(which="major")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def intensity(workload: Workload) -> float:
    """Return the FLOPs per byte of weights. A training step reads the weights three times, a decoded token once."""
    size = 2 if workload.dtype == "bfloat16" else 4
    read = workload.bytes_read or workload.weights * size * (3 * workload.steps or 1)
    return workload.flops / read


def save(rows: Sequence[Row], path: Path, is_wanted: Callable[[Path], bool] = lambda picture: True) -> None:
    """Write the plots beside the results file `path`; the stem of this file is the prefix of the plots' names."""
    with mpl.rc_context(STYLE):
        for name, draw in plots(rows):
            picture = path.with_name(f"{path.stem}-{name}.png")
            if is_wanted(picture):
                draw().savefig(picture, dpi=150)


def _canvas(height: float, columns: int = 1) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9, height))
    axes = figure.subplots(1, columns, squeeze=False)[0]
    return figure, axes[0] if columns == 1 else axes


def _bar(axes: Axes, at: int, row: Row, value: Quartiles) -> None:
    error = [[value.middle - value.low], [value.high - value.middle]]
    style: dict[str, Any] = {"color": COLOURS[row.kind], "alpha": 1.0 if row.ours else PALER}
    axes.barh(at, value.middle, xerr=error, ecolor=INK, error_kw={"lw": 0.8}, **style, height=0.72)


def _name_rows(axes: Axes, rows: Sequence[Row]) -> None:
    axes.set_yticks(range(len(rows)), [row.candidate for row in rows])
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        label.set_fontweight("bold" if row.ours else "normal")
