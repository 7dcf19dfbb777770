"""How good is the checker? `python conformance/meta/power.py [--sample N] [--json FILE]` measures it.

Every catalogued mistake in every configuration where it acts, pairs of mistakes, mistakes that no catalogue has, and
correct ports in many styles: the share of right answers of each, beside what it has to be, and every wrong one by name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from meta.trials import CASES, MEASURES, Answer, Measure, Trial, all_trials, ask, sampled


def asked(trials: Sequence[Trial], jobs: int, console: Console) -> list[Answer]:
    """The answer to every trial, in order; what is wrong with one is told at once, for all of them take long."""
    answers = []
    with ExitStack() as stack:
        given = stack.enter_context(ProcessPoolExecutor(jobs)).map(ask, trials) if jobs > 1 else map(ask, trials)
        for answer in track(given, "checking", len(trials), console=console):
            for measure in MEASURES:
                if wrong(measure, [answer]):
                    console.print(
                        f"[red]not[/] {measure.says}: {answer.trial} → {answer}", highlight=False, soft_wrap=True
                    )
            answers.append(answer)
    return answers


def wrong(measure: Measure, answers: Iterable[Answer]) -> list[Answer]:
    """The answers that `measure` counts and finds wrong; a crash is never right."""
    return [answer for answer in answers if measure.counts(answer) and (answer.crash or not measure.right(answer))]


def scores(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Every measure with something to count: how many, the share that is right, the target, and what is wrong."""
    found = []
    for measure in MEASURES:
        counted = [answer for answer in answers if measure.counts(answer)]
        failures = wrong(measure, answers)
        if counted:
            share = 1 - len(failures) / len(counted)
            slowest = max(answer.seconds for answer in counted)
            found.append(
                {
                    "measure": measure.says,
                    "trials": len(counted),
                    "share": share,
                    "target": measure.target,
                    "reached": share >= measure.target,
                    "slowest": slowest,
                    "failures": [{"trial": str(answer.trial), "answer": str(answer)} for answer in failures],
                }
            )
    return found


def table(found: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="The power of the checker")
    for column in ("measure", "trials", "right", "target", "slowest"):
        shown.add_column(column, justify="left" if column == "measure" else "right")
    for score in found:
        style = "green" if score["reached"] else "red"
        share = f"[{style}]{score['share']:.1%}"
        shown.add_row(
            score["measure"], str(score["trials"]), share, f"{score['target']:.0%}", f"{score['slowest']:.1f} s"
        )
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the checker on ports that are known to be right or wrong.")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N trials for each measure; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of the sample and of the pairs")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these configurations")
    parser.add_argument("--only", action="append", metavar="WORD", help="only trials with this in their description")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every answer, too")
    options = parser.parse_args(arguments)
    console = Console()
    every = all_trials(tuple(options.case or CASES), options.seed)
    trials = [trial for trial in every if all(word in str(trial) for word in options.only or ())]
    if options.sample:
        trials = sampled(trials, options.sample, options.seed)
    answers = asked(trials, options.jobs, console)
    found = scores(answers)
    console.print(table(found))
    if options.json:
        report = {"measures": found, "answers": [asdict(answer) for answer in answers]}
        options.json.write_text(json.dumps(report, indent=1))
    return 0 if all(score["reached"] for score in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
