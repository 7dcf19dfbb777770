"""Differences that are not faults: a convention for queries that see no key, and near-ties of a router."""

from __future__ import annotations

import math
from collections.abc import Iterator

from transparity_conformance.catalogue.fault import Fault, Hypothesis
from transparity_conformance.catalogue.masks import conventions
from transparity_conformance.diagnosis.probe_result import Results
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.undetermined import hidden_positions, shows_routers, tied_positions
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.report.report import ClaimResult

ID = "wholly_hidden"
OURS = "ours weighs all keys equally; this is a convention, not a fault, and positions that depend on it are not judged"


def other_convention(results: Results) -> Iterator[ClaimResult]:
    """Yield the largest difference that only a convention explains, if the port's differs from ours."""
    found = [
        (share(error, result.budgets[tap]), tap, result)
        for result in results.values()
        for tap, error in result.everywhere.items()
        if tap in hidden_positions(result.probe) and share(error, result.budgets[tap]) > 1 >= result.share(tap)
    ]
    if found:
        _, tap, worst = max(found, key=lambda item: item[0])
        where = f"{tap} ({worst.probe.name})"
        yield ClaimResult(ID, "agrees", worst.everywhere[tap], worst.budgets[tap], where)


def convention_notes(results: Results) -> list[str]:
    """Return the same as a sentence that names the port's convention if the catalogue has it."""
    return [f"{ID}: {_named(results)}; {OURS}" for _ in other_convention(results)]


def near_tie_notes(results: Results, dtype: str) -> list[str]:
    """Return a sentence on the positions that depend on a near-tie between experts; empty without one."""
    tied, total = tied_outputs(results, dtype)
    says = (
        f"near_ties: experts tie within rounding in {dtype}, so either may be chosen. {tied} of {total} "
        "positions of the output depend on it, and are judged only by the port's own scores, where available"
    )
    return [says] * (tied > 0)


def tied_outputs(results: Results, dtype: str) -> tuple[int, int]:
    """Return the number of output positions that depend on a near-tie, and of all output positions."""
    shown = [result for result in results.values() if result.recorded]  # some ports show none in its shape
    tied = [tied_positions(result.probe, dtype).get(result.last) for result in shown]
    total = sum(math.prod(result.recorded[result.last].shape[:-1]) for result in shown)
    return sum(int(each.any(-1).sum()) for each in tied if each is not None), total


def is_judged(results: Results, dtype: str) -> bool:
    """Return whether a verdict is possible.

    They can be judged if the port shows its router scores, or if most of the output depends on no near-tie.
    """
    tied, total = tied_outputs(results, dtype)
    own = all(shows_routers(result.probe, result.recorded) for result in results.values())
    return own or 2 * tied <= total


def _named(results: Results) -> str:
    first = next(iter(results.values()))
    by_variant: dict[str, dict[str, Fault]] = {}
    for tap in first.order:
        for fault in conventions(first.probe.config, tap):
            by_variant.setdefault(fault.variant, {})[tap] = fault
    for by_site in by_variant.values():
        fault = next(iter(by_site.values()))
        if _explains(results, Hypothesis(fault, tuple(by_site))):
            return f"in the port {fault.description}"
    return "in the port, a row with every key masked has another result"


def _explains(results: Results, hypothesis: Hypothesis) -> bool:
    """Return whether a convention removes all differences that conventions decide."""
    for result in results.values():
        odd = [tap for tap, error in result.everywhere.items() if share(error, result.budgets[tap]) > 1]
        ours = walk(result.probe, result.recorded, (hypothesis,)) if odd else {}
        if any(share(gap(result.recorded[tap], ours[tap]), result.budgets[tap]) > 1 for tap in odd):
            return False
    return True
