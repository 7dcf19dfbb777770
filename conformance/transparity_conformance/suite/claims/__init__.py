"""Claims about backends, one file per topic.

A claim is a function that takes a bench and yields evidence: the results of comparisons. The decorator `claim`
registers a function under the name FILE.FUNCTION. The pytest suite tests every claim for every subject, which is a
backend with a dtype, a device and a mode.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from transparity.protocol import HARNESS_ENTRY_POINTS, Backend
from transparity_conformance.oracle.backends import REFERENCE, backend
from transparity_conformance.oracle.budgets import EVERY
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence
from transparity_conformance.suite.bench import Bench

Check = Callable[..., Iterator[ClaimEvidence]]
"""A function that yields the evidence for a claim. The arguments are (bench); for a claim with several cases, (bench,
case); for a claim about the probes of presets, (bench, probe, record)."""


@dataclass(frozen=True)
class Claim:
    name: str
    says: str
    check: Check
    full: Claim | None = None
    """The claim with all cases, for the slow suite; None if the quick suite already tests all cases."""
    dtypes: tuple[str, ...] = EVERY
    of_reference: bool = False
    """Whether the claim is also tested for the reference; the claim's expected values must then not come from the
    reference."""
    compiled: bool = False
    """Whether the claim runs whole models, and is therefore tested in every mode."""
    quick: tuple[str, ...] = EVERY
    """The dtypes in which the quick suite tests the claim."""
    needs: tuple[str, ...] = ()
    """The packages with which the claim compares the reference."""
    harness: bool = False
    """Whether the claim is about single functions or modules, which only a harness can call."""
    sharded: bool = False
    """Whether the claim is about a backend on several ranks."""

    def is_about(self, subject: BackendSubject, first_mode: bool) -> bool:
        return (
            subject.dtype in self.dtypes
            and not (self.needs and subject.backend != REFERENCE)
            and (self.of_reference or subject.backend != REFERENCE)
            and (self.compiled or first_mode)
        )


CLAIMS: dict[str, Claim] = {}


def claim(
    *,
    cases: str | Iterable[str] = (),
    all_cases: Iterable[str] = (),
    all_in: tuple[str, ...] = (),
    few: Collection[str] = (),
    probe: str = "",
    topic: str = "",
    sharded: bool = False,
    harness: bool = False,
    **about: Any,
) -> Callable[[Check], Check]:
    """Register a function as the claim `topic.name`.

    Args:
        cases: The cases of the quick suite, or the name of the bench's attribute with these cases.
        all_cases: The cases of the slow suite.
        all_in: The dtypes in which the slow suite tests all cases.
        few: The only cases to test if a backend compiles models; empty to test all cases.
        probe: The name of the probe, if the function takes a preset's probe and a `ClaimRecord` instead of a case.
        topic: The topic; by default, the name of the file.
        sharded, harness, about: Fields of the `Claim`. A sharded claim also needs a harness.
    """

    def register(check: Check) -> Check:
        name = f"{topic or check.__module__.rpartition('.')[2]}.{check.__name__}"
        says = " ".join((check.__doc__ or "").partition("\n\n")[0].split())
        of_cases = functools.partial(_of_cases, check, few, probe)
        made = Claim(name, says, check, sharded=sharded, harness=harness or sharded, **about)
        if all_in:
            full = replace(made, check=functools.partial(of_cases, tuple(all_cases)), dtypes=all_in, quick=())
            made = replace(made, full=full)
        CLAIMS[name] = replace(made, check=functools.partial(of_cases, cases)) if cases else made
        return check

    return register


def _of_cases(
    check: Check, few: Collection[str], probe: str, cases: str | Iterable[str], bench: Bench
) -> Iterator[ClaimEvidence]:
    for case in getattr(bench, cases) if isinstance(cases, str) else cases:
        if few and bench.compiles and case not in few:
            continue
        yield from check(bench, probes(case)[probe], bench.evidence(case)) if probe else check(bench, case)


@functools.cache
def all_claims() -> dict[str, Claim]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(CLAIMS.items(), key=lambda item: item[0].partition(".")[0]))


def subjects(name: str) -> Iterator[tuple[BackendSubject, bool]]:
    """Yield each subject of a backend, and whether its mode is the backend's first mode, which is the default. All
    dtypes are tested in the first mode. Other modes are tested only in the first dtype, and not in the quick suite."""
    build: Backend = backend(name)
    for device in build.devices():
        for dtype in build.dtypes:
            for mode in build.modes if dtype == build.dtypes[0] else build.modes[:1]:
                yield BackendSubject(name, dtype, device, mode), mode == build.modes[0]


def cases(name: str) -> Iterator[tuple[Claim, BackendSubject, bool]]:
    """Yield each claim with each subject of a backend to which the claim applies, and whether the quick suite tests
    this pair.

    If the quick suite tests only some cases of a claim, yield the claim with these cases, and again with all cases.
    """
    for subject, quick in subjects(name):
        for each in all_claims().values():
            for made in (each, each.full):
                if made and made.is_about(subject, quick):
                    yield made, subject, quick and subject.dtype in made.quick


def not_compared(claim: Claim, bench: Bench) -> str | None:
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
    """Return the evidence for a claim; raise `AssertionError` if nothing was compared."""
    with bench.pinned():
        evidence = list(claim.check(bench.about(claim.name, harness=claim.harness)))
    assert evidence, f"{claim.name} compared nothing for {bench.subject}"
    return evidence
