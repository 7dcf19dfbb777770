"""Detection and naming of sharding mistakes, and alarms on right placements: `python -m meta.ranks.measure`.

All cases of one number of ranks share its processes. `--every N` measures every N-th case.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence

from meta.ranks.cases import CONFIGS, RIGHT, WRONG, Case
from transparity_conformance.checking.check import check
from transparity_conformance.checking.systems import divisible
from transparity_conformance.report.report import Report
from transparity_conformance.running.process.isolation import IsolatedBuild, isolated_build
from transparity_conformance.running.process.ranks import group_of

TIMEOUT = 120.0


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def started(spec: str, ranks: int) -> Iterator[IsolatedBuild]:
    """The processes of so many ranks, for one port after the other."""
    with contextlib.closing(isolated_build(spec, TIMEOUT, ranks=ranks)) as build:
        yield build


def checked(build: IsolatedBuild, case: Case) -> Report:
    """The report on a case, in processes that are there."""
    group = group_of(build)
    assert group is not None
    group.load(case.spec)
    return check(build, case.config, config=divisible(CONFIGS[case.config], case.ranks), name=case.port)


def causes(report: Report) -> list[str]:
    """The ids of all causes that a report names."""
    return [cause.mistake for fault in report.faults for cause in fault.causes]


def measure(cases: Sequence[Case]) -> dict[Case, Report]:
    """The report on every case, those of one number of ranks in the same processes."""
    reports = {}
    for ranks in sorted({case.ranks for case in cases}):
        alike = [case for case in cases if case.ranks == ranks]
        with started(alike[0].spec, ranks) as build:
            for case in alike:
                began = time.monotonic()
                reports[case] = checked(build, case)
                found = ", ".join(dict.fromkeys(causes(reports[case]))) or "no cause"
                said = f"{reports[case].verdict}, {found}"
                say(f"{case}: {said} ({time.monotonic() - began:.1f} s)")
    return reports


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    every = parser.parse_args().every
    reports = measure([*RIGHT[::every], *WRONG[::every]])
    right = [case for case in reports if not case.cause]
    wrong = [case for case in reports if case.cause]
    alarms = [case for case in right if reports[case].verdict != "agrees"]
    missed = [case for case in wrong if reports[case].verdict != "diverges"]
    named = [case for case in wrong if case.cause in causes(reports[case])]
    say(f"right placements: {len(right)}, alarms: {len(alarms)}")
    say(f"mistakes: {len(wrong)}, detected: {len(wrong) - len(missed)}, named: {len(named)}")
    for case in (*alarms, *missed, *(case for case in wrong if case not in named)):
        say(f"look at {case}: {reports[case].verdict}, {causes(reports[case])}, expected {case.cause or 'agreement'}")


if __name__ == "__main__":
    main()
