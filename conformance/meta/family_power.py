"""How good is the checker with the families? `python conformance/meta/family_power.py [--case NAME]` measures it.

Every mistake of `family_slips` in every case where it acts, with taps and by logits alone: the share that is detected,
placed and named, beside what it has to be, and every wrong answer by name.
"""

from __future__ import annotations

import argparse
import functools
import re
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from meta.family_slips import Slip, acting, build_port
from transparity_conformance.cases import CASES
from transparity_conformance.judgement import judge
from transparity_conformance.probes import Probe, probes_of
from transparity_conformance.verdict import Report


@dataclass(frozen=True)
class Trial:
    """One port to be checked, and how."""

    case: str
    slip: Slip
    logits_only: bool

    def __str__(self) -> str:
        return f"{self.case}, {'logits' if self.logits_only else 'taps'}: {self.slip}"


@dataclass(frozen=True)
class Answer:
    """What the checker said, or how it fell over."""

    trial: Trial
    report: Report | None
    seconds: float
    crash: str = ""

    @property
    def is_detected(self) -> bool:
        return self.report is not None and self.report.verdict == "diverges"

    @property
    def is_placed(self) -> bool:
        """Whether every fault stands where the mistake is made, and there is one."""
        where = [fault.where for fault in self.report.faults] if self.report else []
        return bool(where) and all(re.fullmatch(self.trial.slip.place, tap) for tap in where)

    @property
    def is_named(self) -> bool:
        """Whether the cause named first is the mistake, or one that nothing can tell from it."""
        if self.report is None or not self.report.faults or not self.report.faults[0].causes:
            return False
        first = self.report.faults[0]
        return bool({first.causes[0].mistake, *first.indistinguishable} & set(self.trial.slip.ids))

    def __str__(self) -> str:
        if self.report is None:
            return self.crash
        faults = [
            f"{fault.where}: {' and '.join(cause.mistake + ' (' + cause.says + ')' for cause in fault.causes)}"
            f"{' or ' * bool(fault.indistinguishable)}{', '.join(fault.indistinguishable)}"
            for fault in self.report.faults
        ]
        return f"{self.report.verdict}; {'; '.join(faults[:4])}{' …' * (len(faults) > 4)}"


@functools.cache
def case_probes(case: str) -> dict[str, Probe]:
    return probes_of(CASES[case], case)


def trials(cases: Sequence[str] = tuple(CASES)) -> list[Trial]:
    """Everything there is to try."""
    return [Trial(case, slip, alone) for case in cases for slip in acting(case) for alone in (False, True)]


def ask(trial: Trial) -> Answer:
    """Check the port of `trial`. An exception is an answer too: a wrong one."""
    began, probes = time.perf_counter(), case_probes(trial.case)
    try:
        said = {}
        with np.errstate(all="ignore"):
            for name, probe in probes.items():
                said[name] = build_port(trial.slip)(probe.config, probe.parameters)(**probe.inputs)
        report = judge(trial.case, probes, said, logits_only=trial.logits_only)
        return Answer(trial, report, time.perf_counter() - began)
    except Exception:  # noqa: BLE001 - it is counted, whatever it is
        return Answer(trial, None, time.perf_counter() - began, traceback.format_exc().strip().splitlines()[-1])


MEASURES = (
    ("detected, with taps", False, "is_detected", 1.0),
    ("detected, by logits alone", True, "is_detected", 1.0),
    ("placed, with taps", False, "is_placed", 0.98),
    ("named first, with taps", False, "is_named", 0.98),
    ("named first, by logits alone", True, "is_named", 0.92),
)
"""What is measured, of which trials, by which property, and what the share has to be."""


def wrong(answers: Sequence[Answer], logits_only: bool, right: str) -> list[Answer]:
    """The answers that a measure counts and finds wrong."""
    return [answer for answer in answers if answer.trial.logits_only == logits_only and not getattr(answer, right)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the checker on mistakes in the parts of families.")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these configurations")
    parser.add_argument("--only", action="append", metavar="WORD", help="only trials with this in their description")
    options = parser.parse_args(arguments)
    console, answers, missed = Console(), [], 0
    for trial in trials(tuple(options.case or CASES)):
        if not all(word in str(trial) for word in options.only or ()):
            continue
        answers.append(ask(trial))
        failed = [name for name, alone, right, _ in MEASURES if wrong(answers[-1:], alone, right)]
        if failed:
            words = f"not {', not '.join(failed)}: {trial} → {answers[-1]}"
            console.print(words, highlight=False, soft_wrap=True, markup=False)
    table = Table("measure", "trials", "right", "target", title="The power of the checker, families")
    for name, alone, right, target in MEASURES:
        counted = [answer for answer in answers if answer.trial.logits_only == alone]
        share = 1 - len(wrong(answers, alone, right)) / max(1, len(counted))
        missed += share < target
        table.add_row(name, str(len(counted)), f"{share:.1%}", f"{target:.0%}")
    console.print(table)
    seconds = [answer.seconds for answer in answers]
    console.print(f"{len(answers)} checks in {sum(seconds):.0f} s, {max(seconds, default=0):.1f} s at most")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
