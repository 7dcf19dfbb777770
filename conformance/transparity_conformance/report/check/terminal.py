"""Print the result of a check in a terminal: the verdict, a block for each wrong line and cause, and next steps."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from transparity_conformance.report.causes import meanings
from transparity_conformance.report.check.findings import (
    MOST_PLACES,
    PRACTICALLY_ALL,
    Finding,
    another_model,
    beginnings,
    findings,
    partly,
    remedy,
    sentence,
    ties,
    too_little,
    unlocated,
    worst,
    worst_share,
)
from transparity_conformance.report.check.lines import PortLine, lines_of
from transparity_conformance.report.check.view import MARKS, CheckView, notes_on, unexplained
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count, format_share, height
from transparity_conformance.report.parts import Timing
from transparity_conformance.report.report import VERBS, Report
from transparity_conformance.report.terminal import plain_table

STYLES = {verdict: style for verdict, (_, style) in MARKS.items()}

BARS = "▁▂▃▄▅▆▇█"

WIDTH = 80

MOST_FINDINGS = 12
MOST_OPEN = 4
"""The largest number of findings shown, if later findings may be consequences of the first."""
MOST_REASONS = 4
MOST_BARS = 48


def answer(report: Report, *, verbose: bool = False, ways: bool = True, alike: Sequence[str] = ()) -> RenderableType:
    """Return the result of one check; `alike` names other configurations with the same result. With `ways`, end with
    the options that print more."""
    view = CheckView(report, alike)
    parts = [*_parts(view, verbose), *(_next(view, verbose) if ways else [])]
    spaced = (Padding(part, (int(number > 0), 0, 0, 0), expand=False) for number, part in enumerate(parts))
    return Group(Headline(view), Padding(Group(*spaced), (1, 0, 1, 2)))


def as_text(reports: Sequence[Report], width: int = 100, *, verbose: bool = False) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None, markup=False, highlight=False)
    for report in reports:
        console.print(answer(report, verbose=verbose, ways=False), crop=False)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


class Headline:
    """The first line: `✗ my.py:load differs from the reference  llama, float32`, not wrapped."""

    def __init__(self, view: CheckView) -> None:
        self.view = view

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        (mark, color), system = self.view.mark, self.view.system
        title, style = f"{mark} {self.view.title}", f"bold {color}"
        gap = options.max_width - len(title) - len(system)
        if gap < 2:
            yield Text(title, style, no_wrap=True, overflow="ignore")
            yield Padding(Text(system, "dim"), (0, 0, 0, 2))
        else:
            yield Text.assemble((title, style), " " * gap, (system, "dim"))


def answers(reports: Sequence[Report], code: int, *, failed: int = 0, verbose: bool = False) -> RenderableType:
    """Return the result of one check, or a summary of several with each distinct result that disagrees."""
    if len(reports) == 1:
        return answer(reports[0], verbose=verbose)
    shown: dict[Any, list[Report]] = {}
    for report in reports:
        if report.verdict != "agrees":
            shown.setdefault(_content(report), []).append(report)
    parts = [answer(first, verbose=verbose, alike=[each.preset for each in rest]) for first, *rest in shown.values()]
    return Group(*(["", *parts, _summary(reports, code, failed)] if reports else []))


def _content(report: Report) -> object:
    found = findings(report)
    told = ((each.lines, tuple((cause.says, cause.at) for cause in each.causes), *each.places) for each in found)
    return tuple(told) or sentence(report)


def one_line(report: Report) -> RenderableType:
    causes = dict.fromkeys(cause.mistake for finding in findings(report) for cause in finding.causes)
    unknown = "too little was compared" if report.verdict == "inconclusive" else "unexplained"
    right = f"{format_share(worst(report)[0])} of the tolerance"
    says = right if report.verdict == "agrees" else ", ".join(causes) or unknown
    view = CheckView(report)
    says += view.failed_audit.removeprefix("agrees")
    return Text.assemble(
        view.mark, f" {report.preset:<18} {report.verdict:<13} {says}", no_wrap=True, overflow="ellipsis"
    )


def _summary(reports: Sequence[Report], code: int, failed: int) -> Text:
    """Return `6 configurations: 3 agree (1 with a warning), 2 differ, 1 not checked; exit code 2`."""
    verdicts = [report.verdict for report in reports]
    counts = {name: verdicts.count(name) for name in reversed(VERBS) if name in verdicts}
    counted = [f"{number} {VERBS[name][number > 1]}" for name, number in counts.items()]
    warned = sum(bool(report.verdict == "agrees" and report.audit and report.audit.warning) for report in reports)
    if warned:
        counted[0] += f" ({warned} with a warning)"
    counted += [f"{failed} not checked"] * bool(failed)
    return Text(f"{len(reports) + failed} configurations: {', '.join(counted)}; exit code {code}", style="bold")


def _parts(view: CheckView, verbose: bool) -> Iterator[RenderableType]:
    report = view.report
    sentences = [*beginnings(report), another_model(report)]
    yield from (Text(f"{each.strip(' .:')}.") for each in sentences if each)
    yield from _blocks(view, verbose)
    if report.verdict == "diverges":
        yield from _closing(view)
    else:
        yield _strength(view, verbose)
    if also := ties(report):
        yield Text(also, style="yellow")
    if verbose:
        yield from _details(view)
    elif any(not finding.causes for finding in view.findings):
        told = {note for finding in view.findings for note in notes_on(finding, report)}
        if others := [note for note in view.notes if note not in told]:
            yield named(("Note", line) for line in others[:MOST_REASONS])


def _blocks(view: CheckView, verbose: bool) -> Iterator[RenderableType]:
    is_known = bool(remedy(view.report))
    most = len(view.findings) if verbose else MOST_FINDINGS if is_known else MOST_OPEN
    if len(view.findings) > 1 and not is_known:
        yield Text("Fix the first fault first; the later faults may be its consequences.")
    for finding in view.findings[:most]:
        yield Group(*_block(view, finding))
    if view.findings[most:]:
        yield Text(f"and {len(view.findings) - most} more (--verbose)")


def _block(view: CheckView, finding: Finding) -> Iterator[RenderableType]:
    if not (finding.causes and all(cause.source for cause in finding.causes)):
        yield from _code(finding.lines, "", around=not finding.causes)
    yield from _code(finding.departs_from, "departs from ", around=False)
    for cause in finding.placed:
        yield from _code(lines_of(cause.source), "", around=False)
        yield _row(cause.mistake, Text(cause.says), *([Text(f"at {cause.at}", style="dim")] if cause.at else []))
    if not finding.causes:
        name, lines = unexplained(finding, view.report)
        yield _row(name, *map(Text, lines), Text(f"at {finding.placed_at}", style="dim"), *_profile(finding))
    elif 0 < finding.explained < PRACTICALLY_ALL:
        yield Text(partly(finding), style="yellow")
    if finding.impact and view.findings[1:]:
        yield Text(finding.impact.sentence, style="dim")


def _code(lines: Sequence[PortLine], before: str, *, around: bool) -> Iterator[RenderableType]:
    """Yield each line with its file, its number and carets; `around` adds the neighboring lines."""
    shown = lines[: MOST_PLACES if around else 1]
    others = "".join(f", {line.place}" for line in lines[len(shown) :][:MOST_PLACES])
    for line in shown:
        yield Text.assemble(before, (f"{line.place}{others}", "bold cyan"))
        written, carets = line.marked
        if around and line.around:
            for number, text in line.around:
                here = ">" if number == line.line else " "
                yield _code_line(f"{here} {number:4} {text}", "" if here == ">" else "dim")
                if number == line.line and carets:
                    yield _code_line(" " * (7 + len(text) - len(text.lstrip())) + carets, "red")
        elif carets:
            yield from (_code_line(f"   {text}", style) for text, style in _cut(written, carets))
        else:
            yield Padding(Text(written), (0, 0, 0, 3), expand=False)


def _code_line(text: str, style: str) -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _cut(text: str, carets: str, width: int = 74) -> list[tuple[str, str]]:
    """Return a line and its carets. If the carets exceed the width, omit the characters before the carets."""
    start = len(carets) - len(carets.lstrip())
    if len(text) > width and len(carets) > width:
        text, carets = f"… {text[start:]}", f"  {carets[start:]}"
    return [(text, ""), (carets, "red")]


def _row(name: str, *texts: Text) -> RenderableType:
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row(Text(name, style="bold", no_wrap=True), Group(*texts))
    return table


def _closing(view: CheckView) -> Iterator[RenderableType]:
    report = view.report
    if not view.findings:
        yield Text(unlocated(report))
    elif view.first_divergence:
        yield Text(f"The first activation beyond its tolerance is {view.first_divergence}.")
    impact = view.findings[0].impact if len(view.findings) == 1 else None
    lines = [remedy(report), impact.sentence if impact else ""]
    if text := "\n".join(filter(None, lines)):
        yield Text(text)
    if view.audit:
        yield named(("Audit", line) for line in view.audit)


def _strength(view: CheckView, verbose: bool) -> RenderableType:
    report = view.report
    rows = [("Compared", view.compared or "nothing"), ("Tolerance", worst_share(report))] * bool(report.measured)
    if report.verdict == "inconclusive":
        rows.insert(0, ("Undecided", too_little(report)))
    if report.verdict == "agrees" and report.audit and report.audit.warning:
        rows.insert(0, ("Warning", report.audit.warning))
    rows += [("Untested", line) for line in report.coverage.untested]
    rows += [("Audit", line) for line in view.audit]
    rows += [("Not compared", line) for line in (view.not_compared if verbose else view.not_compared_in_short)]
    return named(rows + [("Note", line) for line in view.notes])


def named(rows: Iterable[tuple[str, str]]) -> Table:
    table, before = Table.grid(padding=(0, 3, 0, 0)), ""
    for name, text in rows:
        table.add_row(Text("" if name == before else name, style="bold"), Text(text, overflow="fold"))
        before = name
    return table


def _details(view: CheckView) -> Iterator[RenderableType]:
    report = view.report
    if view.coverage:
        yield named([("Covers", view.coverage)])
    if report.claims:
        rows = ((claim.id, Text(claim.used, STYLES[claim.verdict]), claim.where) for claim in report.claims)
        yield _table(("claim", "share, end to end", "worst at"), rows)
    if report.measured:
        yield _table(("activation", "end to end", "this step", "probe"), _activations(report))
    remarks = [("Not compared", line) for line in view.not_compared] + [("Note", line) for line in view.notes]
    if report.verdict == "diverges" and remarks:
        yield named(remarks)
    if report.timing:
        yield _times(report.timing)


def _activations(report: Report) -> Iterator[tuple[str, Text, str, str]]:
    for tap in dict.fromkeys(item.tap for item in report.measured):
        worst = max((item for item in report.measured if item.tap == tap), key=lambda item: item.share)
        used = Text(format_share(worst.share), STYLES["diverges" if worst.is_wrong else "agrees"])
        yield tap, used, format_share(worst.segment_share), worst.probe


def _times(timing: Mapping[str, Timing]) -> Table:
    known = [time for time in timing.values() if time.port is not None]
    whole = Timing(
        sum(time.seconds for time in timing.values()),
        sum(time.processor for time in timing.values()),
        sum(time.port or 0.0 for time in known) if known else None,
    )
    rows = []
    for stage, time in {**timing, "all": whole}.items():
        cells = [f"{each:.1f}" if each is not None else "–" for each in (time.seconds, time.processor, time.port)]
        rows += [[stage, *cells]] if {*cells} - {"0.0", "–"} else []
    return _table(("stage", *NUMBERS[3:]), rows)


NUMBERS = ("share, end to end", "end to end", "this step", "seconds", "checker's processor", "port's processor")


def _table(columns: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> Table:
    table = plain_table(show_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for name in columns:
        table.add_column(name, justify="right" if name in NUMBERS else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _profile(finding: Finding) -> Iterator[Text]:
    budget = finding.worst.budget
    for axis, errors in finding.profile.items():
        if (drawn := bars(errors, budget)) and "·" in drawn:
            yield Text(f"{drawn} by {axis}")


def _next(view: CheckView, verbose: bool) -> Iterator[RenderableType]:
    causes = dict.fromkeys(cause.mistake for finding in view.findings for cause in finding.causes)
    causes = {name: None for name in causes if name in meanings()}  # edits of another implementation have no page
    is_wrong = view.report.verdict == "diverges"
    rows = [(f"transparity explain {cause}", "what it is, and how to fix it") for cause in [*causes][: int(is_wrong)]]
    page = "--html report.html  a page to look at"
    noted = f", {count(len(view.notes), 'note')}" if view.notes else ""
    ways = (page, "--markdown -  for a pull request") if verbose else (f"--verbose  every activation{noted}", page)
    rows.append(ways)
    first, last = (max(map(len, column)) for column in zip(*rows, strict=True))
    first *= int(first + last <= WIDTH - 7)
    yield Text("\n".join(f"{one:<{first}}     {other}" for one, other in rows), no_wrap=True)


def bars(errors: Sequence[float], budget: float) -> str:
    """Return bars such as `··▃█`, with dots for errors within the budget; "" for too many errors."""
    if len(errors) > MOST_BARS:
        return ""
    largest, tall = max(errors, key=lambda error: share(error, budget)), len(BARS) - 1
    return "".join(BARS[round(tall * height(error, largest))] if share(error, budget) > 1 else "·" for error in errors)
