"""A check in a terminal: the verdict first, then what is wrong, where and why."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from transparity_conformance.report.check.findings import Finding, immeasurable, layer_pattern, spread
from transparity_conformance.report.check.lines import lines_of
from transparity_conformance.report.check.view import CheckView, check_view
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import format_share, height
from transparity_conformance.report.report import Report
from transparity_conformance.report.terminal import hanging, plain_table

STYLES = {"agrees": "bold green", "diverges": "bold red", "inconclusive": "bold yellow"}
CLAIM_STYLES = {"agrees": "green", "diverges": "red", "inconclusive": "yellow"}

BARS = "▁▂▃▄▅▆▇█"

MOST_FINDINGS = 12
MOST_PLACES = 4
MOST_BARS = 48


def table(report: Report) -> RenderableType:
    """The verdict in a sentence, the faults, the share of every budget, and what was not compared."""
    return Group(*_parts(check_view(report)))


def as_text(reports: Sequence[Report], width: int = 100) -> str:
    """The tables as plain text."""
    console = Console(width=width, file=io.StringIO(), color_system=None)
    for report in reports:
        console.print(table(report), crop=False)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _parts(view: CheckView) -> Iterator[RenderableType]:
    report = view.report
    headline = (f"{report.title} ({report.dtype}) ", "bold"), (report.verdict.upper(), STYLES[report.verdict])
    yield Text.assemble(*headline, no_wrap=True, overflow="ignore")  # one line, however long the path of the port is
    yield Text(view.sentence)
    if view.coverage:
        yield hanging("Covers ", view.coverage)
    yield from (hanging("Audit ", line) for line in view.audit)
    if view.findings:
        yield _below(_findings(view))
    if view.ties:
        yield _below(Text(view.ties, style="yellow"))
    if view.worst_sentence:
        yield _below(Text(view.worst_sentence))
    if view.first_divergence:
        yield Text(f"The first tap beyond its budget is {view.first_divergence}.")
    if view.claims:
        yield _below(_claims(view))
    for title, lines in view.lists.items():
        if lines:
            yield ""
            yield Text(f"{title}:", style="bold")
            yield from (hanging("  ", line) for line in lines)
    yield ""


def _below(part: RenderableType) -> Padding:
    return Padding(part, (1, 0, 0, 0), expand=False)


def _findings(view: CheckView) -> Table:
    table = _table()
    # a cause is below its place: side by side, one of the two would be cut in a narrow terminal
    table.add_column("place, and cause", overflow="fold")
    table.add_column("× budget", justify="right", no_wrap=True)
    style = "red" if view.report.verdict == "diverges" else "yellow"
    for finding in view.findings[:MOST_FINDINGS]:
        used = format_share(finding.share).rstrip("×")
        cause = Padding(_cause(view, finding), (0, 0, 0, 2), expand=False)
        table.add_row(Group(*_lines(finding), _places(finding), cause), Text(used, style=style))
    if len(view.findings) > MOST_FINDINGS:
        table.add_row(f"and {len(view.findings) - MOST_FINDINGS} more")
    return table


def _lines(finding: Finding) -> list[Text]:
    """The lines of the port, as far as they are known; none if each cause has its own."""
    if finding.causes and all(cause.source for cause in finding.causes):
        return []
    own = [Text.assemble((line.place, "bold"), f" {line.code}") for line in finding.lines[:MOST_PLACES]]
    theirs = finding.departs_from[:MOST_PLACES]
    return own + [Text.assemble("departs from ", (line.place, "bold"), f" {line.code}") for line in theirs]


def _places(finding: Finding) -> Text:
    names = [fault.where for fault in finding.faults]
    more = [f"and {len(names) - MOST_PLACES} more"] if len(names) > MOST_PLACES else []
    return Text("\n".join(names[:MOST_PLACES] + more))


def _cause(view: CheckView, finding: Finding) -> RenderableType:
    if not finding.causes:
        return Group(Text("unexplained", style="bold"), *_impact(finding), *_profile(view, finding))
    lines = []
    for cause in finding.causes:
        lines += [Text.assemble((line.place, "bold"), f" {line.code}") for line in lines_of([cause])]
        lines.append(Text.assemble((f"{cause.mistake}: ", "bold"), cause.says))
    if residual := finding.residual:
        lines.append(Text(f"leaves {residual}", style="dim"))
    return Group(*lines, *_impact(finding))


def _impact(finding: Finding) -> list[Text]:
    return [Text(finding.impact)] if finding.impact else []


def _profile(view: CheckView, finding: Finding) -> Iterator[Text]:
    """The spread of an unexplained error: in words, and as bars where they are few enough."""
    fault = finding.worst
    if not math.isfinite(fault.error):
        yield Text(immeasurable(fault))
        return
    if fault.probe:
        yield Text(f"probe {fault.probe}")
    for words, errors in zip(finding.spread, finding.profile.values(), strict=True):
        yield Text(f"{words} {bars(errors, fault.budget)}".rstrip())
    if layers := view.layers.get(layer_pattern(fault.where)[0]):
        yield Text(f"{spread({'layer': layers}, 1.0)[0]} {bars(layers, 1.0)}".rstrip())


def bars(errors: Sequence[float], budget: float) -> str:
    """`··▃█`: the logarithm of each error, a dot where it is within the budget; empty if there are too many."""
    if len(errors) > MOST_BARS:
        return ""
    largest, tall = max(errors, key=lambda error: share(error, budget)), len(BARS) - 1
    return "".join(BARS[round(tall * height(error, largest))] if share(error, budget) > 1 else "·" for error in errors)


def _claims(view: CheckView) -> Table:
    table = _table()
    table.add_column("claim", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("worst at", overflow="fold")
    for claim in view.claims:
        table.add_row(Text(claim.id), Text(claim.share, style=CLAIM_STYLES[claim.verdict]), Text(claim.where))
    return table


def _table() -> Table:
    return plain_table(show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
