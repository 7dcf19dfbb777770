"""Measure the checker on first drafts: `python -m meta.drafts.measure [--drafts N] [--seed S] [--only WORD]`.

Each draft has three to six bugs and shows its logits alone. A bug is named in one run if a cause with one of its ids is
reported; in runs that mend what was named first, if it is named in any of them. Where a bug is first named, the line is
right if it is a line of the bug, one that runs what the bug changes, or next to one.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meta.drafts.bugs import Bug
from meta.drafts.draft import Draft, drafts, right_lines, written
from transparity.presets import PRESETS
from transparity_conformance import check
from transparity_conformance.report.report import Divergence, Report

DRAFTS = 60

TARGETS = {"named in one run": 0.85, "named in runs that mend": 0.95, "right line": 0.90}


@dataclass
class Judged:
    """The names and lines of one draft."""

    draft: Draft
    named: list[Bug]
    mended: list[Bug]
    lines: list[bool]
    false: list[str]
    """Causes that are no bug of the draft."""
    seconds: float
    runs: int
    crash: str = ""
    answers: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        missed = [str(bug) for bug in self.draft.bugs if bug not in self.named]
        says = f"named {len(self.named)} of {len(self.draft.bugs)}, mended {len(self.mended)} in {self.runs} runs, "
        says += f"lines {sum(self.lines)} of {len(self.lines)}, {self.seconds:.1f} s"
        return f"{self.draft.case}: {says}; missed {missed}; false {self.false}{self.crash}"


def names(fault: Divergence) -> set[str]:
    """The ids of the causes of a divergence, and of those that cannot be told from them."""
    return {cause.mistake for cause in fault.causes} | set(fault.indistinguishable)


def bugs_named(draft: Draft, fault: Divergence) -> list[Bug]:
    """The bugs that a divergence names; of several with the same name, those whose line it shows."""
    found = [bug for bug in draft.bugs if names(fault) & set(bug.ids)]
    at_line = {bug.ids for bug in found if is_line_of(draft, fault, bug)}
    return [bug for bug in found if bug.ids not in at_line or is_line_of(draft, fault, bug)]


def is_line_of(draft: Draft, fault: Divergence, bug: Bug) -> bool:
    if fault.source is None:
        return False
    file, line = Path(fault.source["file"]).name, fault.source["line"]
    return any(name == file and abs(line - right) <= 1 for name, right in right_lines(draft, bug))


def checked(draft: Draft, folder: Path, **options: Any) -> Report:
    model = written(draft, folder)
    which: dict[str, Any] = {"preset": draft.case} if draft.case in PRESETS else {"config": draft.config}
    return check(model, **which, **options)


def judged(draft: Draft, folder: Path, *, once: bool = False) -> Judged:
    """Check a draft and, unless `once`, again while something is named first that can be mended."""
    began = time.perf_counter()
    report = checked(draft, folder / "first")
    seconds = time.perf_counter() - began
    named: list[Bug] = []
    lines, false = [], []
    for fault in report.faults:
        found = bugs_named(draft, fault)
        new = [bug for bug in found if bug not in named]
        lines += [any(is_line_of(draft, fault, bug) for bug in found)] * bool(new)
        named += new
        if fault.causes and not found:
            false.append(f"{fault.where}: {' and '.join(cause.mistake for cause in fault.causes)}")
    answers = [_answer(fault) for fault in report.faults]
    mended, runs = (named, 1) if once else _mended(draft, report, folder)
    return Judged(draft, named, mended, lines, false, seconds, runs, answers=answers)


def _answer(fault: Divergence) -> str:
    at = fault.source
    line = f"{Path(at['file']).name}:{at['line']} {at['code']:.60}" if at else "no line"
    causes = " and ".join(cause.mistake for cause in fault.causes) or "unexplained"
    return f"{fault.where} ({fault.probe}; {line}): {causes} {fault.indistinguishable or ''}"


def _mended(draft: Draft, report: Report, folder: Path) -> tuple[list[Bug], int]:
    """The bugs that are named in runs that mend the first that is named, and the number of runs."""
    mended: list[Bug] = []
    runs = 1
    while True:
        rest = draft.without(mended)
        named = [bug for fault in report.faults for bug in bugs_named(rest, fault)]
        if not named:
            return mended, runs
        mended.append(named[0])
        if len(mended) == len(draft.bugs):
            return mended, runs
        report = checked(draft.without(mended), folder / f"run{runs}")
        runs += 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the drafts, print each and the shares; 1 if one is below its target."""
    parser = argparse.ArgumentParser(description="Measure the checker on ports with several bugs at once.")
    parser.add_argument("--drafts", type=int, default=DRAFTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="WORD", help="only drafts with this in their description")
    parser.add_argument("--once", action="store_true", help="one run of each draft: nothing is mended")
    parser.add_argument("--verbose", action="store_true", help="print every divergence")
    options = parser.parse_args(arguments)
    tally: list[Judged] = []
    with tempfile.TemporaryDirectory() as name:
        for number, draft in enumerate(drafts(options.drafts, Path(name), options.seed)):
            if options.only in str(draft):
                try:
                    tally.append(judged(draft, Path(name, f"draft_{number}"), once=options.once))
                except Exception as error:  # noqa: BLE001 - it is counted, whatever it is
                    tally.append(Judged(draft, [], [], [], [], 0.0, 0, f"; crashed: {error!r:.300}"))
                print(number, tally[-1], flush=True)  # noqa: T201
                for answer in tally[-1].answers if options.verbose else ():
                    print("      ", answer)  # noqa: T201
    return print_shares(tally)


def print_shares(tally: Sequence[Judged]) -> int:
    """Print the shares beside their targets; return 1 if one is missed."""
    bugs = sum(len(each.draft.bugs) for each in tally)
    counted = {
        "named in one run": (sum(len(each.named) for each in tally), bugs),
        "named in runs that mend": (sum(len(each.mended) for each in tally), bugs),
        "right line": (sum(sum(each.lines) for each in tally), sum(len(each.lines) for each in tally)),
    }
    for measure, (right, of) in counted.items():
        print(f"{measure}: {right} of {of} ({right / max(of, 1):.1%}; wanted {TARGETS[measure]:.0%})")  # noqa: T201
    print(f"false causes: {sum(len(each.false) for each in tally)}")  # noqa: T201
    print(f"seconds, median: {float(np.median([each.seconds for each in tally])):.1f}")  # noqa: T201
    return int(any(right < TARGETS[measure] * of for measure, (right, of) in counted.items()))


if __name__ == "__main__":
    raise SystemExit(main())
