"""Write the result of a check as an HTML page, or as Markdown for a pull request."""

from __future__ import annotations

import hashlib
import math
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from transparity.taps import in_every_layer, in_layer
from transparity.text import listed
from transparity_conformance.report.causes import meanings, page_of
from transparity_conformance.report.check.findings import (
    Finding,
    another_model,
    beginnings,
    remedy,
    sentence,
    shares_by_layer,
    ties,
    worst_share,
)
from transparity_conformance.report.check.terminal import WIDTH, as_text
from transparity_conformance.report.check.view import CheckView, unexplained
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import format_share, height, scientific, template
from transparity_conformance.report.report import VERBS, Measured, Report, environment
from transparity_conformance.storage.paths import is_file

MOST_BARS = 128
"""The largest number of bars; a bar may show the largest error of several positions."""

AXES = ("layer", "head", "position", "row", "feature")


def as_html(reports: Sequence[Report]) -> str:
    functions: dict[str, Any] = {"probes": _probes, "heat_map": _heat_map, "profiles": _profiles, "shade": _shade}
    functions |= {"summary": _summary, "next_step": _next, "meanings": meanings(), "page_of": page_of}
    functions |= {"unexplained": unexplained, "ties": ties, "worst_share": worst_share}
    functions |= {"fields_of": vars, "bars_by_axis": _bars_by_axis}
    views = list(map(CheckView, reports))
    return template("check.html.jinja").render(headline=headline(reports), views=views, **functions)


def _summary(view: CheckView) -> str:
    """Return the verdict as a sentence that omits the findings, because the page lists the findings."""
    if view.report.verdict != "diverges" or not view.findings:
        return sentence(view.report)
    return " ".join([*beginnings(view.report), another_model(view.report)]).replace("`", "").strip()


def _next(view: CheckView) -> str:
    places = [place for finding in view.findings for place in _to_fix(finding)]
    if enough := remedy(view.report):
        return f"fix {listed(list(dict.fromkeys(places)))}, and run the check again. {enough}"
    more = "; later differences may disappear" if places[1:] else ""
    return f"fix {places[0]}, and run the check again{more}."


def _to_fix(finding: Finding) -> list[str]:
    """Return the wrong lines or, if they are unknown, the activation of the cause."""
    at = [cause.at for cause in finding.causes if cause.at] or finding.places
    return [line.place for line in finding.wrong_lines] or at[:1]


def headline(reports: Sequence[Report]) -> dict[str, str]:
    verdicts: list[str] = [report.verdict for report in reports]
    worst = next((verdict for verdict in VERBS if verdict in verdicts), "inconclusive")
    if len(reports) == 1:
        view = CheckView(reports[0])
        color = "inconclusive" if view.mark[0] == "!" else worst
        return {"verdict": color, "text": view.title}
    number = verdicts.count(worst)
    every = "both" if number == 2 else f"all {number}"
    of = every if number == len(reports) else f"{number} of {len(reports)}"
    ports = {report.port for report in reports}
    begins = f"{ports.pop()}: " if len(ports) == 1 and "" not in ports else ""
    text = f"{begins}{of} {VERBS[worst][number > 1]}" if reports else "Nothing was checked"
    return {"verdict": worst, "text": text if begins else text.capitalize()}


def _probes(report: Report) -> list[str]:
    return list(dict.fromkeys(item.probe for item in report.measured))


def _heat_map(report: Report) -> list[dict[str, Any]]:
    cells = {(item.tap, item.probe): item for item in report.measured}
    rows, before, is_red = [], tuple[Any, ...](), False
    for tap in dict.fromkeys(item.tap for item in report.measured):
        # A gap separates the rows of different layers, and of activations outside of layers.
        part = (in_layer(tap) or (tap,))[:2]
        shown = [cells.get((tap, probe)) for probe in _probes(report)]
        is_first = not is_red and any(cell and cell.segment_share > 1 for cell in shown)
        rows.append({"tap": tap, "starts": part != before, "cells": shown, "is_first_red": is_first})
        before, is_red = part, is_red or is_first
    return rows


def _shade(error: float, budget: float) -> dict[str, Any]:
    used = share(error, budget)
    return {
        "text": format_share(used),
        "over": used > 1,
        "heat": round(min(1.0, math.log10(used) / 6), 3) if used > 1 else 0,
        "title": f"{scientific(error)} of {scientific(budget)}",
    }


def _profiles(report: Report) -> list[dict[str, Any]]:
    layers = shares_by_layer(report.measured)
    worst: dict[str, Measured] = {}
    patterns = dict.fromkeys(in_every_layer(item.tap) for item in report.measured)
    for item in report.measured:
        pattern = in_every_layer(item.tap)
        if item.profile and (pattern not in worst or item.share > worst[pattern].share):
            worst[pattern] = item
    rows = []
    for pattern in patterns:
        bars = _bars_by_axis(worst[pattern].profile, worst[pattern].budget) if pattern in worst else {}
        if pattern in layers:
            bars |= _bars_by_axis({"layer": layers[pattern]}, 1.0)
        if bars:
            rows.append({"pattern": pattern, "item": worst.get(pattern), "bars": [bars.get(axis) for axis in AXES]})
    return rows


def _bars_by_axis(profile: dict[str, list[float]], budget: float) -> dict[str, dict[str, Any]]:
    return {axis: _bars(axis, profile[axis], budget) for axis in AXES if len(profile.get(axis, ())) > 1}


def _bars(axis: str, errors: Sequence[float], budget: float) -> dict[str, Any]:
    size = math.ceil(len(errors) / MOST_BARS)
    groups = [errors[start : start + size] for start in range(0, len(errors), size)]
    peaks = [max(group, key=lambda error: share(error, budget)) for group in groups]
    largest = max(peaks, key=lambda error: share(error, budget))
    is_over = share(largest, budget) > 1
    bars = []
    for start, (peak, group) in zip(range(0, len(errors), size), zip(peaks, groups, strict=True), strict=True):
        high = height(peak, largest) if is_over else share(peak, budget)
        span = f"{start}–{start + len(group) - 1}" if len(group) > 1 else f"{start}"
        size_of = scientific(peak) if budget != 1.0 else format_share(peak)
        bars.append(
            {"height": round(100 * high, 1), "over": share(peak, budget) > 1, "title": f"{axis} {span}: {size_of}"}
        )
    return {"axis": axis, "of": len(errors), "bars": bars}


FILES = ("--json", "--html", "--markdown")

DIGITS = 16


def as_markdown(reports: Sequence[Report], *, weights: Path | None = None) -> str:
    return "\n".join([*(line for report in reports for line in _report(report)), *_provenance(reports, weights), ""])


def _report(report: Report) -> Iterator[str]:
    view = CheckView(report)
    yield from (f"### {view.mark[0]} {_plain(view.title)} ({_plain(view.system)})", "")
    text = as_text([report], WIDTH).partition("\n\n")[2].strip("\n")  # without the title
    fence = "`" * 8  # longer than any fence in the port's code
    yield from (f"{fence}text", text, fence, "")
    if view.coverage:
        parts = (f"- {part}" for part in _plain(view.coverage).split("; "))
        yield from ("<details><summary>What was compared</summary>", "", *parts, "", "</details>", "")


def _provenance(reports: Sequence[Report], weights: Path | None) -> Iterator[str]:
    port = Path(reports[0].port.rpartition(":")[0] or reports[0].port) if reports else Path()
    rows = [
        ("command", f"`{_plain(shlex.join(['transparity', *_without_files(sys.argv[1:])]))}`"),
        ("versions", ", ".join(f"{name} {_plain(version)}" for name, version in environment().items())),
        ("port", f"`{_plain(port.name)}` {digest([port])}" if is_file(port) else _plain(str(port))),
        (
            "weights",
            "random, made by the checker" if weights is None else digest(sorted(weights.glob("*.safetensors"))),
        ),
    ]
    yield from ("| | |", "|---|---|", *(f"| {name} | {text} |" for name, text in rows))


def _without_files(options: Sequence[str]) -> Iterator[str]:
    """Yield the options without `FILES` and their paths, which other machines do not need."""
    is_path = False
    for option in options:
        if not is_path and not option.startswith(tuple(f"{name}=" for name in FILES)) and option not in FILES:
            yield option
        is_path = not is_path and option in FILES


def digest(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: found)
    return f"sha256:{found.hexdigest()[:DIGITS]}"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
