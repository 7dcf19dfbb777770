"""The result of checking one capability of a port: loss, gradients, generation, cached decoding or training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from transparity_conformance.report.report import ClaimResult, Divergence, Report


@dataclass(frozen=True)
class CapabilityResult:
    """The claims about a capability, its divergences, and what was not compared."""

    claims: tuple[ClaimResult, ...] = ()
    faults: tuple[Divergence, ...] = ()
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calls: int = 0
    """The number of calls of one object, each compared with the same call of a new object."""

    def __add__(self, other: CapabilityResult) -> CapabilityResult:
        return CapabilityResult(
            self.claims + other.claims,
            self.faults + other.faults,
            self.not_compared + other.not_compared,
            self.notes + other.notes,
            self.calls + other.calls,
        )


def not_compared(*reasons: str) -> CapabilityResult:
    """Return a result that has only reasons why nothing was compared."""
    return CapabilityResult(not_compared=reasons)


def with_capabilities(report: Report, found: CapabilityResult) -> Report:
    """Return the report on the forward pass with the results of capabilities added."""
    coverage = dataclasses.replace(report.coverage, calls=report.coverage.calls + found.calls)
    both = (*found.not_compared, *report.not_compared)
    added = report.adding(*found.faults, claims=found.claims, notes=found.notes, coverage=coverage)
    return dataclasses.replace(added, not_compared=both)
