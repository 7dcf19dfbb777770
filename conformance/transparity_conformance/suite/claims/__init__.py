"""The claims: what a column is held to, one file a subject.

A claim is a function from a bench to evidence. `claim` registers it under its topic (the file) and its name, which says
what is claimed; the pytest suite makes it about every subject, and so can anybody else.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from transparity_conformance.oracle.backends import REFERENCE
from transparity_conformance.oracle.budgets import EVERY
from transparity_conformance.report.comparison import Evidence, Subject
from transparity_conformance.suite.bench import Bench

Check = Callable[[Bench], Iterator[Evidence]]


@dataclass(frozen=True)
class Claim:
    """What is claimed, and of whom."""

    name: str
    says: str
    check: Check
    dtypes: tuple[str, ...]
    of_reference: bool
    """Whether the expected values come from elsewhere, so that the reference can be held to them, too."""
    compiled: bool
    """Whether the claim runs whole models, and so is made in every mode, not in the first alone."""
    quick: tuple[str, ...]
    """The dtypes in which the quick suite makes it."""
    needs: tuple[str, ...]
    """Packages with the independent implementation that the claim compares with."""
    harness: bool
    """Whether the claim is about single functions or modules, which a backend offers through its harness."""

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
) -> Callable[[Check], Check]:
    """Register a check as the claim `topic.name`, after its file and its function."""

    def register(check: Check) -> Check:
        topic = check.__module__.rpartition(".")[2]
        name = f"{topic}.{check.__name__}"
        says = (check.__doc__ or "").strip().splitlines()[0]
        CLAIMS[name] = Claim(name, says, check, dtypes, of_reference, compiled, quick, needs, harness)
        return check

    return register


def all_claims() -> dict[str, Claim]:
    """Every claim by name, in the order of the files and of the functions in them."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return CLAIMS
