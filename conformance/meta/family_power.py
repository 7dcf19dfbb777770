"""How good is the checker with the families? `python conformance/meta/family_power.py [--case NAME]` measures it.

Every mistake of `family_slips` in every case where it acts, pairs of them, and mistakes that no catalogue has, with
taps and by logits alone: the share of right answers, beside what it has to be, and every wrong one by name.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from meta.family_slips import UNCATALOGUED, Slip, acting, build_port, together
from meta.trials import neither_hides
from transparity.taps import tap_shapes
from transparity_conformance.diagnosis.judge import judge
from transparity_conformance.oracle.cases import CASES
from transparity_conformance.oracle.probes import Probe, probes_of
from transparity_conformance.report.report import Divergence, Report

PAIRS = 40


@dataclass(frozen=True)
class Trial:
    """One port to be checked, and how."""

    measure: str
    case: str
    slips: tuple[Slip, ...]
    logits_only: bool

    def __str__(self) -> str:
        return f"{self.case}, {'logits' if self.logits_only else 'taps'}: {' and '.join(map(str, self.slips))}"


@dataclass(frozen=True)
class Answer:
    """What the checker said, or how it fell over."""

    trial: Trial
    report: Report | None
    seconds: float
    crash: str = ""

    @property
    def faults(self) -> tuple[Divergence, ...]:
        return self.report.faults if self.report else ()

    @property
    def is_detected(self) -> bool:
        return self.report is not None and self.report.verdict == "diverges"

    @property
    def is_placed(self) -> bool:
        """Whether every fault stands where some mistake is made, and every mistake has its fault."""
        made, where = self.trial.slips, [fault.where for fault in self.faults]
        return all(any(is_at(slip, tap) for slip in made) for tap in where) and all(
            any(is_at(slip, tap) for tap in where) for slip in made
        )

    @property
    def is_named(self) -> bool:
        """Whether the cause named first is the mistake, or one that nothing can tell from it."""
        return bool(self.faults) and names(self.faults[0], self.trial.slips[0])

    @property
    def are_both_named(self) -> bool:
        """Whether every mistake is named at a place of its own."""
        return self.is_placed and all(
            any(is_at(slip, fault.where) and names(fault, slip) for fault in self.faults) for slip in self.trial.slips
        )

    @property
    def is_one_named(self) -> bool:
        """Whether one mistake is named, and the other is, too, or is said to remain."""
        right = [slip for slip in self.trial.slips if any(names(fault, slip) for fault in self.faults)]
        left = any(not fault.causes or fault.causes[0].residual > fault.budget for fault in self.faults)
        said = left or any("remain" in note for note in (self.report.notes if self.report else ()))
        return len(right) == len(self.trial.slips) or (bool(right) and said)

    @property
    def is_unexplained(self) -> bool:
        """Whether it is found, but called by no name."""
        return self.is_detected and not any(fault.causes for fault in self.faults)

    def __str__(self) -> str:
        if self.report is None:
            return self.crash
        faults = [
            f"{fault.where}: {' and '.join(cause.mistake + ' (' + cause.says + ')' for cause in fault.causes)}"
            f"{' or ' * bool(fault.indistinguishable)}{', '.join(fault.indistinguishable)}"
            for fault in self.report.faults
        ]
        return f"{self.report.verdict}; {'; '.join(faults[:4])}{' …' * (len(faults) > 4)}"


def is_at(slip: Slip, tap: str) -> bool:
    """Whether the mistake shows by itself at a tap."""
    return re.fullmatch(slip.place, tap) is not None


def names(fault: Divergence, slip: Slip) -> bool:
    """Whether what a fault is first put down to is the mistake, or one that nothing can tell from it."""
    said = {fault.causes[0].mistake, *fault.indistinguishable} if fault.causes else set()
    return bool(said & set(slip.ids))


@functools.cache
def case_probes(case: str) -> dict[str, Probe]:
    return probes_of(CASES[case], case)


def trials(cases: Sequence[str] = tuple(CASES)) -> list[Trial]:
    """Every single mistake in every case where it acts."""
    return [Trial("slip", case, (slip,), alone) for case in cases for slip in acting(case) for alone in (False, True)]


def further_trials(cases: Sequence[str] = tuple(CASES), pairs: int = PAIRS, seed: int = 0) -> list[Trial]:
    """Mistakes that no catalogue has, and pairs of those that one has."""
    single = [(case, slip) for case in cases for slip in UNCATALOGUED if slip.acts(CASES[case])]
    made: list[tuple[str, str, tuple[Slip, ...]]] = [("uncatalogued", case, (slip,)) for case, slip in single]
    made += [("pair", case, pair) for case, pair in itertools.islice(_pairs(cases, seed), pairs)]
    return [Trial(*each, alone) for each in made for alone in (False, True)]


def _pairs(cases: Sequence[str], seed: int) -> Iterator[tuple[str, tuple[Slip, Slip]]]:
    """Two mistakes at different places, each of which shows beside the other, drawn at random without end."""
    draw = random.Random(seed)
    while True:
        case = draw.choice(cases)
        one, other = draw.sample(acting(case), 2)
        config = CASES[case]
        taps = tap_shapes(config, 1, **dict.fromkeys(config.input_names, 1))
        apart = not any(is_at(one, tap) and is_at(other, tap) for tap in taps)
        if apart and not set(one.exchanged) & set(other.exchanged) and _both_act(case, one, other):
            yield case, (one, other)


def _both_act(case: str, one: Slip, other: Slip) -> bool:
    ports = [build_port(made, dtype="float64") for made in (together(one, other), one, other)]
    return neither_hides(case_probes(case).values(), *ports)


def ask(trial: Trial) -> Answer:
    """Check the port of `trial`. An exception is an answer too: a wrong one."""
    began, probes = time.perf_counter(), case_probes(trial.case)
    try:
        said, made = {}, functools.reduce(together, trial.slips)
        with np.errstate(all="ignore"):
            for name, probe in probes.items():
                said[name] = build_port(made)(probe.config, probe.parameters)(**probe.inputs)
        report = judge(trial.case, probes, said, logits_only=trial.logits_only)
        return Answer(trial, report, time.perf_counter() - began)
    except Exception:  # noqa: BLE001 - it is counted, whatever it is
        return Answer(trial, None, time.perf_counter() - began, traceback.format_exc().strip().splitlines()[-1])


class Measure(NamedTuple):
    """A share of right answers that the checker has to reach."""

    says: str
    trials: str
    logits_only: bool
    right: str
    """A property of `Answer`."""
    target: float

    def counts(self, trial: Trial) -> bool:
        return trial.measure == self.trials and trial.logits_only == self.logits_only


MEASURES = (
    Measure("detected, with taps", "slip", False, "is_detected", 1.0),
    Measure("detected, by logits alone", "slip", True, "is_detected", 1.0),
    Measure("placed, with taps", "slip", False, "is_placed", 0.98),
    Measure("named first, with taps", "slip", False, "is_named", 0.98),
    Measure("named first, by logits alone", "slip", True, "is_named", 0.92),
    Measure("two mistakes: both placed and named, with taps", "pair", False, "are_both_named", 0.95),
    Measure("two mistakes: one named, the other said to remain, by logits", "pair", True, "is_one_named", 0.90),
    Measure("no false cause: placed, with taps", "uncatalogued", False, "is_placed", 1.0),
    Measure("no false cause: unexplained, with taps", "uncatalogued", False, "is_unexplained", 1.0),
    Measure("no false cause: unexplained, by logits alone", "uncatalogued", True, "is_unexplained", 1.0),
)


def wrong(answers: Sequence[Answer], measure: Measure) -> list[Answer]:
    """The answers that a measure counts and finds wrong."""
    return [answer for answer in answers if measure.counts(answer.trial) and not getattr(answer, measure.right)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the checker on mistakes in the parts of families.")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only these configurations")
    parser.add_argument("--only", action="append", metavar="WORD", help="only trials with this in their description")
    options = parser.parse_args(arguments)
    console, answers, missed = Console(), [], 0
    cases = tuple(options.case or CASES)
    for trial in [*trials(cases), *further_trials(cases)]:
        if not all(word in str(trial) for word in options.only or ()):
            continue
        answers.append(ask(trial))
        failed = [measure.says for measure in MEASURES if wrong(answers[-1:], measure)]
        if failed:
            words = f"not {', not '.join(failed)}: {trial} → {answers[-1]}"
            console.print(words, highlight=False, soft_wrap=True, markup=False)
    table = Table("measure", "trials", "right", "target", title="The power of the checker, families")
    for measure in MEASURES:
        counted = sum(measure.counts(answer.trial) for answer in answers)
        if counted:
            share = 1 - len(wrong(answers, measure)) / counted
            missed += share < measure.target
            table.add_row(measure.says, str(counted), f"{share:.1%}", f"{measure.target:.0%}")
    console.print(table)
    seconds = [answer.seconds for answer in answers]
    console.print(f"{len(answers)} checks in {sum(seconds):.0f} s, {max(seconds, default=0):.1f} s at most")
    return int(missed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
