"""The claims about each subject, and the evidence of a single claim."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from transparity.protocol import HARNESS_ENTRY_POINTS, Backend
from transparity_conformance.oracle.backends import backend
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence
from transparity_conformance.suite.bench import Bench
from transparity_conformance.suite.claims import Claim, all_claims


def subjects(name: str) -> Iterator[tuple[BackendSubject, bool]]:
    """Yield every subject of a backend, and whether the quick suite includes it.

    All dtypes are tested in the first mode, which is the users' default. Other modes are tested only in the first
    dtype, and not in the quick suite.
    """
    build: Backend = backend(name)
    for device in build.devices():
        for dtype in build.dtypes:
            for mode in build.modes if dtype == build.dtypes[0] else build.modes[:1]:
                yield BackendSubject(name, dtype, device, mode), mode == build.modes[0]


def cases(name: str) -> Iterator[tuple[Claim, BackendSubject, bool]]:
    """Yield every claim, also with all its cases, with each subject of a backend, and whether it is quick."""
    for subject, quick in subjects(name):
        for each in all_claims().values():
            for made in (each, each.full):
                if made and made.is_about(subject, quick):
                    yield made, subject, quick and subject.dtype in made.quick


def not_compared(claim: Claim, bench: Bench) -> str | None:
    """Return why a claim cannot be tested here; None if it can."""
    missing = [package for package in claim.needs if importlib.util.find_spec(package) is None]
    if missing:
        return f"{missing[0]} is not installed"
    if claim.harness and bench.parts is None:
        return f"{bench.subject.backend} has no harness (entry-point group {HARNESS_ENTRY_POINTS})"
    if claim.sharded and bench.subject.device != "cpu":
        return "ranks are compared only on the CPU"
    if claim.sharded and not bench.shards:
        return f"{bench.subject.backend} does not run on several ranks (its harness has no `SHARDED`)"
    return None


def make(claim: Claim, bench: Bench) -> list[ClaimEvidence]:
    """Return the evidence of a claim; raise `AssertionError` if there is no evidence."""
    with bench.pinned():
        evidence = list(claim.check(bench.about(claim.name, harness=claim.harness)))
    assert evidence, f"{claim.name} compared nothing for {bench.subject}"
    return evidence
