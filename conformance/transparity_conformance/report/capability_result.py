"""Findings about one capability of a port: loss, gradients, generation, cached decoding or training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from transparity_conformance.report.report import ClaimResult, Divergence, Report


@dataclass(frozen=True)
class CapabilityResult:
    """The claims about a capability, its divergences, and its omissions."""

    claims: tuple[ClaimResult, ...] = ()
    faults: tuple[Divergence, ...] = ()
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    calls: int = 0
    """Calls of one object, each compared with a fresh object's."""

    def __add__(self, other: CapabilityResult) -> CapabilityResult:
        return CapabilityResult(
            self.claims + other.claims,
            self.faults + other.faults,
            self.not_compared + other.not_compared,
            self.notes + other.notes,
            self.calls + other.calls,
        )


def not_compared(*reasons: str) -> CapabilityResult:
    """Return a result with nothing but the reasons."""
    return CapabilityResult(not_compared=reasons)


def with_capabilities(report: Report, found: CapabilityResult) -> Report:
    """Add the findings about capabilities to the report on the forward pass."""
    coverage = dataclasses.replace(report.coverage, calls=report.coverage.calls + found.calls)
    both = (*found.not_compared, *report.not_compared)
    added = report.adding(*found.faults, claims=found.claims, notes=found.notes, coverage=coverage)
    return dataclasses.replace(added, not_compared=both)
