"""Which claims are made about which subjects, and how one is made."""

from __future__ import annotations

from collections.abc import Iterator

from transparity.backend import Backend
from transparity_conformance.backends import backend
from transparity_conformance.bench import Bench
from transparity_conformance.claims import Claim, all_claims
from transparity_conformance.evidence import Evidence, Subject

COMPILERS = {"compile"}
"""Modes that compile for many seconds: with them a claim is made in the first dtype alone, and never quickly."""


def subjects(name: str) -> Iterator[tuple[Subject, bool]]:
    """Every subject of a backend, and whether it belongs to the quick suite.

    The quick one runs the first dtype in the first mode, as a user would, and every other dtype uncompiled.
    """
    build: Backend = backend(name)
    for device in build.devices():
        for dtype in build.dtypes:
            for mode in build.modes:
                usual = build.modes[0] if dtype == build.dtypes[0] else "eager"
                if mode not in COMPILERS or dtype == build.dtypes[0]:
                    yield Subject(name, dtype, device, mode), mode == usual


def cases(name: str) -> Iterator[tuple[Claim, Subject, bool]]:
    """Every claim with every subject of a backend that it is about, and whether that is quick."""
    for subject, quick in subjects(name):
        for made in all_claims().values():
            if made.is_about(subject, quick):
                yield made, subject, quick and subject.dtype in made.quick


def make(claim: Claim, bench: Bench) -> list[Evidence]:
    """The evidence of a claim; a claim without any has shown nothing, which is an error."""
    with bench.backend.pinned():
        evidence = list(claim.check(bench))
    assert evidence, f"{claim.name} compared nothing for {bench.subject}"
    return evidence
