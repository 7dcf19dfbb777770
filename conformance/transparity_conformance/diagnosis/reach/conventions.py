"""Differences that are not faults: conventions for fully masked queries, and near-ties between experts."""

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
OURS = (
    "in a fully masked row, the reference gives all keys the same weight; positions that depend on this row are not "
    "compared"
)


def other_convention(results: Results) -> Iterator[ClaimResult]:
    """Yield a claim about the largest difference from another convention for fully masked queries, if any."""
    found = [
        (share(error, result.budgets[tap]), tap, result)
        for result in results.values()
        for tap, error in result.everywhere.items()
        if tap in hidden_positions(result.probe) and share(error, result.budgets[tap]) > 1 >= result.share(tap)
    ]
    if found:
        _, tap, worst = max(found, key=lambda item: item[0])
        yield ClaimResult(ID, "agrees", worst.everywhere[tap], worst.budgets[tap], f"{tap} ({worst.probe.name})")


def convention_notes(results: Results) -> list[str]:
    return [f"{ID}: {_named(results)}; {OURS}" for _ in other_convention(results)]


def near_tie_notes(results: Results, dtype: str) -> list[str]:
    tied, total = tied_outputs(results, dtype)
    says = (
        f"near_ties: the router's scores of two experts differ by less than rounding in {dtype}, so either expert may "
        f"be chosen. {tied} of {total} output positions depend on such a choice, and are compared only if the port "
        "returns its router scores"
    )
    return [says] * (tied > 0)


def tied_outputs(results: Results, dtype: str) -> tuple[int, int]:
    shown = [result for result in results.values() if result.recorded]  # none if all shapes are wrong
    tied = [tied_positions(result.probe, dtype).get(result.last) for result in shown]
    total = sum(math.prod(result.recorded[result.last].shape[:-1]) for result in shown)
    return sum(int(each.any(-1).sum()) for each in tied if each is not None), total


def is_judged(results: Results, dtype: str) -> bool:
    """Return whether the comparison is conclusive: the port returns router scores, or near-ties affect at most half of
    the output positions."""
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
            return f"in the port, {fault.description}"
    return "the results of the port and the reference differ where every key is masked"


def _explains(results: Results, hypothesis: Hypothesis) -> bool:
    for result in results.values():
        odd = [tap for tap, error in result.everywhere.items() if share(error, result.budgets[tap]) > 1]
        ours = walk(result.probe, result.recorded, (hypothesis,)) if odd else {}
        if any(share(gap(result.recorded[tap], ours[tap]), result.budgets[tap]) > 1 for tap in odd):
            return False
    return True
