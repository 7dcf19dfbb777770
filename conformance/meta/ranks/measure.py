"""The pool `ranks`: mistakes of sharding, which the checker must name, and correct ports, with which it must agree."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from meta.ranks.cases import CONFIGS, RIGHT, WRONG, Case
from meta.trial import Measure
from transparity_conformance.checking.check import check
from transparity_conformance.checking.systems import divisible
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.isolation import IsolatedBuild, isolated_build
from transparity_conformance.running.process.ranks import group_of

TIMEOUT = 120.0


@contextlib.contextmanager
def started(spec: str, ranks: int) -> Iterator[IsolatedBuild]:
    """Yield a build that runs one port after another in the same `ranks` processes."""
    with contextlib.closing(isolated_build(spec, TIMEOUT, ranks=ranks)) as build:
        yield build


def checked(build: IsolatedBuild, case: Case) -> Report:
    """Return the report on a case, from running processes."""
    group = group_of(build)
    assert group is not None
    group.load(case.spec)
    return check(build, case.config, config=divisible(CONFIGS[case.config], case.ranks), name=case.port)


def causes(report: Report) -> list[str]:
    return [cause.mistake for fault in report.faults for cause in fault.causes]


@functools.cache
def _processes(ranks: int) -> IsolatedBuild:
    """Return the processes that all cases with `ranks` ranks share."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(started(RIGHT[0].spec, ranks))


@dataclass(frozen=True)
class RanksTrial:
    case: Case

    def __str__(self) -> str:
        return f"{self.case}, {self.case.cause or 'right'}"

    def run(self) -> dict[str, Any]:
        report = checked(_processes(self.case.ranks), self.case)
        return {"verdict": report.verdict, "causes": causes(report)}


def trials(options: argparse.Namespace) -> list[RanksTrial]:
    """Return all cases, grouped by the number of ranks."""
    return [*map(RanksTrial, sorted([*RIGHT, *WRONG], key=lambda case: case.ranks))]


MEASURES = (
    Measure("correct ports that agree", lambda it, answer: None if it.case.cause else answer["verdict"] == "agrees"),
    Measure("mistakes detected", lambda it, answer: answer["verdict"] == "diverges" if it.case.cause else None),
    Measure("mistakes named", lambda it, answer: it.case.cause in answer["causes"] if it.case.cause else None),
)
