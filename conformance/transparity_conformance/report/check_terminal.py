"""A check's answer for people: in a terminal, the verdict first, and as one HTML page."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from transparity_conformance.report.comparison import share
from transparity_conformance.report.findings import (
    Finding,
    by_layer,
    findings,
    immeasurable,
    layer_pattern,
    residual,
    sentence,
    spread,
    ties,
    worst_in_words,
)
from transparity_conformance.report.formatting import height, share_in_words
from transparity_conformance.report.report import Divergence, Report

STYLES = {"agrees": "bold green", "diverges": "bold red", "inconclusive": "bold yellow"}

BARS = "▁▂▃▄▅▆▇█"

_MOST_FINDINGS = 12
_MOST_PLACES = 4
_MOST_BARS = 48


def table(report: Report) -> RenderableType:
    """The verdict in a sentence, the faults, the share of every budget, and what was not compared."""
    return Group(*_parts(report))


def as_text(reports: Sequence[Report], width: int = 100) -> str:
    """The tables as plain text."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for report in reports:
        console.print(table(report))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _parts(report: Report) -> Iterator[RenderableType]:
    style = STYLES[report.verdict]
    yield Text.assemble((f"{report.preset} ({report.dtype}) ", "bold"), (report.verdict.upper(), style))
    yield Text(sentence(report))
    if report.faults:
        yield Padding(_faults(report), (1, 0, 0, 0), expand=False)
    if tied := ties(report):
        yield Padding(Text(tied, style="yellow"), (1, 0, 0, 0), expand=False)
    if report.faults or report.verdict != "agrees":
        yield Padding(Text(_sentence_case(worst_in_words(report)) + "."), (1, 0, 0, 0), expand=False)
    if report.first_divergence and report.first_divergence not in {fault.where for fault in report.faults}:
        yield Text(f"The first tap beyond its budget is {report.first_divergence}.")
    if report.claims:
        yield Padding(_claims(report), (1, 0, 0, 0), expand=False)
    yield from _list("Not compared", report.not_compared)
    yield from _list("Notes", report.notes)
    yield ""


def _faults(report: Report) -> Table:
    table = _plain_table()
    # A cause stands below its place: side by side, one of the two would be cut in a narrow terminal.
    table.add_column("place, and cause", overflow="fold")
    table.add_column("× budget", justify="right", no_wrap=True)
    found, style = findings(report), "red" if report.verdict == "diverges" else "yellow"
    for finding in found[:_MOST_FINDINGS]:
        used = share_in_words(finding.share).rstrip("×")
        cause = Padding(_why(report, finding), (0, 0, 0, 2), expand=False)
        table.add_row(Group(_places(finding), cause), Text(used, style=style))
    if len(found) > _MOST_FINDINGS:
        table.add_row(f"and {len(found) - _MOST_FINDINGS} more")
    return table


def _places(finding: Finding) -> Text:
    names = [fault.where for fault in finding.faults]
    more = [f"and {len(names) - _MOST_PLACES} more"] if len(names) > _MOST_PLACES else []
    return Text("\n".join(names[:_MOST_PLACES] + more))


def _why(report: Report, finding: Finding) -> RenderableType:
    if not finding.causes:
        return Group(Text("unexplained", style="bold"), *_profile(report, finding.worst))
    lines = [Text.assemble((f"{cause.mistake}: ", "bold"), cause.says) for cause in finding.causes]
    if finding.explained > 0 and report.verdict == "diverges":
        lines.append(Text(f"leaves {residual(finding)}", style="dim"))
    return Group(*lines)


def _profile(report: Report, fault: Divergence) -> Iterator[Text]:
    """Where an error is that nothing explains: in words, and as bars for what is short enough."""
    if not math.isfinite(fault.error):
        yield Text(immeasurable(fault))
        return
    if fault.probe:
        yield Text(f"probe {fault.probe}")
    errors = {axis: list(values) for axis, values in fault.profile.items()}
    for axis, words in zip((a for a in errors if len(errors[a]) > 1), spread(errors, fault.budget), strict=True):
        yield Text(f"{words} {bars(errors[axis], fault.budget)}".rstrip())
    layers = by_layer(report.measured).get(layer_pattern(fault.where)[0], {})
    if len(layers) > 1:
        shares = {"layer": [layers[layer].segment_share for layer in sorted(layers)]}
        yield Text(f"{spread(shares, 1.0)[0]} {bars(shares['layer'], 1.0)}".rstrip())


def bars(errors: Sequence[float], budget: float) -> str:
    """`··▃█`: the logarithm of each error, a dot for what is within the budget; nothing if they are too many."""
    if len(errors) > _MOST_BARS:
        return ""
    largest, tall = max(errors, key=lambda error: share(error, budget)), len(BARS) - 1
    heights = [height(error, largest) for error in errors]
    return "".join(
        BARS[round(tall * high)] if share(error, budget) > 1 else "·"
        for error, high in zip(errors, heights, strict=True)
    )


def _claims(report: Report) -> Table:
    table = _plain_table()
    table.add_column("claim", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("worst at", overflow="fold")
    for claim in report.claims:
        used = "exact" if claim.budget == claim.error == 0 else share_in_words(share(claim.error, claim.budget))
        style = {"agrees": "green", "diverges": "red"}.get(claim.verdict, "yellow")
        table.add_row(Text(claim.id), Text(used, style=style), Text(claim.where))
    return table


def _plain_table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")


def _list(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    if lines:
        yield ""
        yield Text(f"{title}:", style="bold")
        for line in lines:
            row = Table.grid()
            row.add_row(Text("  "), Text(line))
            yield row


def _sentence_case(words: str) -> str:
    return words[:1].upper() + words[1:]
