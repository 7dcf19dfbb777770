"""Measure the checker on planted bugs: `python -m meta.measure [--pool NAME] [--sample N] [--only WORD] [--jobs N]`.

`independent` (the default): bugs, pairs, triples and drafts of the independent port, faults of capabilities, bugs that
no catalogue has, and right ports. `exam`: bugs in other people's code; its results are kept, and
`python -m meta.exam.page --cache FOLDER` takes them into docs/exam.json and writes docs/exam.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from meta.exam import measure as exam
from meta.pool import trials as independent
from meta.pool.judge import Share
from meta.pool.port import CASES, VIEWS

POOLS: dict[str, Any] = {"independent": independent, "exam": exam}
"""Modules with `trials(options)`, `line_of(trial, answer)` and `shares(answered)`; a trial is run by its `run()`."""

TRIALS: list[Any] = []
"""The trials to run; worker processes inherit them and are sent an index."""


def answers(jobs: int) -> Iterator[dict[str, Any]]:
    """The answer to every one of `TRIALS`, in order."""
    if jobs == 1:
        yield from map(_run, range(len(TRIALS)))
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("fork")) as pool:
        yield from pool.map(_run, range(len(TRIALS)))


def _run(number: int) -> dict[str, Any]:
    found: dict[str, Any] = TRIALS[number].run()
    return found


def table(title: str, shares: Sequence[Share]) -> Table:
    """One row for each measure."""
    shown = Table("measure", "right", "of", "share", "wanted", title=title)
    for each in shares:
        share = f"[{'green' if each.is_reached else 'red'}]{each.right / max(each.of, 1):.1%}"
        shown.add_row(each.title, str(each.right), str(each.of), share, f"{each.target:.0%}" if each.target else "")
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials, print the wrong answers and the shares; 1 if one is below its target."""
    parser = argparse.ArgumentParser(description="Measure the checker on ports that are known to be right or wrong.")
    parser.add_argument("--pool", choices=POOLS, default="independent")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N trials of each kind and view")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of ports with several bugs")
    parser.add_argument("--only", default="", metavar="WORD", help="only trials with this in their description")
    parser.add_argument("--kind", action="append", choices=independent.KINDS, help="only trials of this kind")
    parser.add_argument("--view", action="append", choices=VIEWS, help="only ports that are seen so")
    parser.add_argument("--case", action="append", choices=CASES, help="only these configurations")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer, too")
    exam.add_options(parser)
    options = parser.parse_args(arguments)
    pool, console = POOLS[options.pool], Console(width=200)
    TRIALS[:] = pool.trials(options)
    found = []
    for trial, answer in zip(TRIALS, answers(options.jobs), strict=True):
        found.append((trial, answer))
        if line := pool.line_of(trial, answer):
            console.print(line, highlight=False, soft_wrap=True, markup=False)
    shares = pool.shares(found)
    console.print(table(f"The power of the checker: {options.pool}", shares))
    if options.json:
        options.json.write_text(json.dumps([{"trial": str(trial), "answer": x} for trial, x in found], indent=1))
    inert = sum(answer["verdict"] == "inert" for _, answer in found)
    console.print(f"{len(found)} trials, {inert} of which change nothing and do not count")
    return int(any(answer.get("missing") for _, answer in found) or not all(share.is_reached for share in shares))


if __name__ == "__main__":
    raise SystemExit(main())
