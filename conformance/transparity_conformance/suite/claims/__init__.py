"""Claims about backends, one file per subject.

A claim is a function from a bench to evidence. `claim` registers it under its topic, which is the name of the file, and
its own name. The pytest suite tests it on every subject, and other programs can do the same.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from transparity_conformance.oracle.backends import REFERENCE
from transparity_conformance.oracle.budgets import EVERY
from transparity_conformance.oracle.probes import probes
from transparity_conformance.report.comparison import BackendSubject, ClaimEvidence
from transparity_conformance.suite.bench import Bench

Check = Callable[..., Iterator[ClaimEvidence]]
"""Maps a bench to evidence; a claim about a range of cases also takes the cases."""


@dataclass(frozen=True)
class Claim:
    """A claim and the subjects that it applies to."""

    name: str
    says: str
    check: Check
    full: Claim | None = None
    """The same claim about all of its cases, for the slow suite; None if the quick suite has them all."""
    dtypes: tuple[str, ...] = EVERY
    of_reference: bool = False
    """Whether the expected values are independent of the reference, so that the reference can be tested too."""
    compiled: bool = False
    """Whether the claim runs whole models, and so is tested in every mode, not only in the first."""
    quick: tuple[str, ...] = EVERY
    """The dtypes in which the quick suite tests it."""
    needs: tuple[str, ...] = ()
    """Packages with the independent implementation that the claim compares with."""
    harness: bool = False
    """Whether the claim is about single functions or modules, which a backend offers through its harness."""
    sharded: bool = False
    """Whether the claim is about the backend over several ranks, which its harness offers."""

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
    cases: tuple[str, ...] = (),
    all_cases: Iterable[str] = (),
    all_in: tuple[str, ...] = (),
    topic: str = "",
    sharded: bool = False,
    harness: bool = False,
    **about: Any,
) -> Callable[[Check], Check]:
    """Register a check as the claim `topic.name`, after its file and its function.

    Args:
        cases: the cases of the quick suite, if the check takes any.
        all_cases: the cases of its full range, in the dtypes `all_in`.
        topic: replaces the name of the file.
        sharded, harness, about: fields of the `Claim`; a sharded claim needs the harness.
    """

    def register(check: Check) -> Check:
        name = f"{topic or check.__module__.rpartition('.')[2]}.{check.__name__}"
        says = " ".join((check.__doc__ or "").partition("\n\n")[0].split())
        every = functools.partial(_check, name, check)
        made = Claim(name, says, every, sharded=sharded, harness=harness or sharded, **about)
        if cases:
            of_all = functools.partial(every, cases=tuple(all_cases))
            full = replace(made, check=of_all, dtypes=all_in, quick=()) if all_in else None
            made = replace(made, check=functools.partial(every, cases=cases), full=full)
        CLAIMS[name] = made
        return check

    return register


def each(cases: str | Iterable[str], probe: str = "mixed") -> Callable[[Check], Check]:
    """Turn a check of a bench, one preset's `probe` and a record into a check of a bench.

    `cases` are presets, or the name of the bench's attribute that lists them.
    """

    def decorate(check: Check) -> Check:
        @functools.wraps(check)
        def of_every_case(bench: Bench) -> Iterator[ClaimEvidence]:
            names: Iterable[str] = getattr(bench, cases) if isinstance(cases, str) else cases
            for case in names:
                yield from check(bench, probes(case)[probe], bench.evidence(case))

        return of_every_case

    return decorate


def _check(name: str, check: Check, bench: Bench, **cases: Any) -> Iterator[ClaimEvidence]:
    """Yield the evidence of a check, from a bench that knows the claim's name."""
    yield from check(bench.about(name), **cases)


@functools.cache
def all_claims() -> dict[str, Claim]:
    """Return every claim by name, in the order of topics, and of the functions in their files."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(CLAIMS.items(), key=lambda item: item[0].partition(".")[0]))
