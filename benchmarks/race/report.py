"""The report of a race, which all views share, and its JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from benchmarks.environment import cores, cuda, overridden_kernels, processor, versions
from benchmarks.race.candidates import Candidate
from benchmarks.race.race import Conditions, Result
from benchmarks.race.standings import Standing, as_dict
from benchmarks.workloads import Workload

FORMAT_VERSION = 2


@dataclass(frozen=True)
class Report:
    """The content of every view: terminal, page, plots, JSON."""

    rows: Sequence[Standing]
    conditions: Mapping[str, Any]
    absent: Sequence[str]
    """Candidates whose libraries are not installed, each with what is missing."""
    not_asked: Mapping[str, Mapping[str, str]]
    """By workload, the candidates that cannot run it, each with the reason."""

    def by_workload(self) -> Iterator[tuple[Workload, list[Standing]]]:
        for _, rows in groupby(self.rows, lambda row: row.workload.name):
            found = list(rows)
            yield found[0].workload, found


def report_of(
    rows: Sequence[Standing], workloads: Sequence[Workload], candidates: Sequence[Candidate], conditions: Conditions
) -> Report:
    """The report of a race over `workloads`, run by those of `candidates` that are installed."""
    not_asked = {
        workload.name: {
            candidate.name: reason
            for candidate in candidates
            if not candidate.is_limit and (reason := candidate.why_not(workload, conditions.device))
        }
        for workload in workloads
    }
    return Report(rows, surroundings(conditions), missing(candidates), not_asked)


def missing(candidates: Sequence[Candidate]) -> list[str]:
    """The candidates whose libraries are not installed, each with what is missing."""
    return [f"{candidate.name}: {reason}" for candidate in candidates if (reason := candidate.why_missing())]


def surroundings(conditions: Conditions) -> dict[str, Any]:
    """The conditions and the environment that the figures depend on."""
    return {
        "threads": conditions.threads,
        "cores": cores(),
        "rounds": conditions.rounds,
        "device": conditions.device,
        "processor": processor(),
        "python": platform.python_version(),
        "environment": {n: v for n, v in os.environ.items() if n.startswith(("OMP_", "MKL_", "MALLOC_", "XLA_"))},
        "kernels not held to": overridden_kernels(),
        "heap kept": conditions.keeps_heap,
        "memory": conditions.memory,
        "versions": versions(),
    } | cuda(conditions.device)


def as_json(report: Report, results: Sequence[Result]) -> str:
    """Everything, and the seconds of every round."""
    return json.dumps(
        {
            "format": FORMAT_VERSION,
            "conditions": report.conditions,
            "workloads": {workload.name: workload.as_dict() for workload, _ in report.by_workload()},
            "standings": [as_dict(row) for row in report.rows],
            "seconds": [
                {"candidate": each.candidate.name, "workload": each.workload.name, "rounds": each.seconds}
                for each in results
            ],
            "absent": report.absent,
            "not_asked": report.not_asked,
        },
        indent=2,
    )
