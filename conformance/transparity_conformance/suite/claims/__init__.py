"""Claims about backends, one file per subject.

A claim is a function from a bench to evidence. `claim` registers it under its topic, which is the name of the file, and
under its own name. The pytest suite tests it on every subject, and any other program can do the same.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from transparity_conformance.oracle.backends import REFERENCE
from transparity_conformance.oracle.budgets import EVERY
from transparity_conformance.report.comparison import Evidence, Subject

Check = Callable[..., Iterator[Evidence]]
"""From a bench to evidence; a claim about a range of cases also takes the cases."""


@dataclass(frozen=True)
class Claim:
    """A claim and the subjects that it is about."""

    name: str
    says: str
    check: Check
    dtypes: tuple[str, ...]
    of_reference: bool
    """Whether the expected values are independent of the reference, so that it can be tested, too."""
    compiled: bool
    """Whether the claim runs whole models, and so is tested in every mode, not only in the first."""
    quick: tuple[str, ...]
    """The dtypes in which the quick suite tests it."""
    full: Claim | None
    """The same claim about all of its cases, for the slow suite; None if the quick suite has them all."""
    needs: tuple[str, ...]
    """Packages with the independent implementation that the claim compares with."""
    harness: bool
    """Whether the claim is about single functions or modules, which a backend offers through its harness."""
    sharded: bool = False
    """Whether the claim is about the backend over several ranks, which its harness offers."""

    def is_about(self, subject: Subject, first_mode: bool) -> bool:
        return (
            subject.dtype in self.dtypes
            and not (self.needs and subject.backend != REFERENCE)
            and (self.of_reference or subject.backend != REFERENCE)
            and (self.compiled or first_mode)
        )


CLAIMS: dict[str, Claim] = {}


def claim(
    *,
    dtypes: tuple[str, ...] = EVERY,
    of_reference: bool = False,
    compiled: bool = False,
    quick: tuple[str, ...] = EVERY,
    needs: tuple[str, ...] = (),
    harness: bool = False,
    sharded: bool = False,
    cases: tuple[str, ...] = (),
    all_cases: Iterable[str] = (),
    all_in: tuple[str, ...] = (),
    topic: str = "",
) -> Callable[[Check], Check]:
    """Register a check as the claim `topic.name`, after its file and its function.

    Args:
        dtypes: the precisions in which it is tested, `quick` those of the quick suite.
        of_reference: whether the expected values are independent of the reference.
        compiled: whether it is tested in every mode.
        needs: packages that it compares with.
        harness, sharded: whether it is about single functions or modules, or about the backend over several ranks.
        cases: the cases of the quick suite, if the check takes any.
        all_cases: those of its full range, in the dtypes `all_in`; topic: another than the name of the file.
    """

    def register(check: Check) -> Check:
        name = f"{topic or check.__module__.rpartition('.')[2]}.{check.__name__}"
        says = " ".join((check.__doc__ or "").partition("\n\n")[0].split())

        def made(cases: tuple[str, ...], dtypes: tuple[str, ...], quick: tuple[str, ...], full: Claim | None) -> Claim:
            of_cases = functools.partial(check, cases=cases) if cases else check
            how = dtypes, of_reference, compiled, quick, full, needs, harness or sharded, sharded
            return Claim(name, says, of_cases, *how)

        CLAIMS[name] = made(cases, dtypes, quick, made(tuple(all_cases), all_in, (), None) if all_in else None)
        return check

    return register


def all_claims() -> dict[str, Claim]:
    """Every claim by name, in the order of the files and of the functions in them."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return CLAIMS
