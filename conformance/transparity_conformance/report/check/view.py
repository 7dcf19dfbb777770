"""What is shown of a check, as plain data: the terminal and the page lay it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from transparity_conformance.report.check.findings import (
    Finding,
    findings,
    layer_pattern,
    sentence,
    shares_by_layer,
    ties,
    worst_share,
)
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count, format_share
from transparity_conformance.report.report import Report


@dataclass(frozen=True)
class ShownClaim:
    """One claim: its verdict, and the share of its budget that it uses."""

    id: str
    verdict: str
    share: str
    where: str


@dataclass(frozen=True)
class CheckView:
    """A report as sentences, rows and lists."""

    report: Report

    @cached_property
    def sentence(self) -> str:
        return sentence(self.report)

    @cached_property
    def ties(self) -> str:
        return ties(self.report)

    @cached_property
    def findings(self) -> list[Finding]:
        return findings(self.report)

    def leaves(self, finding: Finding) -> str:
        """The residual of a finding that is wrong and, at least in part, explained."""
        return finding.residual if finding.explained > 0 and self.report.verdict == "diverges" else ""

    @cached_property
    def _shares_by_layer(self) -> dict[str, list[float]]:
        return shares_by_layer(self.report.measured)

    def layers(self, tap: str) -> Sequence[float]:
        """The share of its budget that `tap` uses in each layer by itself, if there are several."""
        return self._shares_by_layer.get(layer_pattern(tap)[0], ())

    @cached_property
    def worst(self) -> str:
        """The worst share of a budget, as a clause."""
        return worst_share(self.report)

    @property
    def worst_sentence(self) -> str:
        """The worst share of a budget as a sentence; empty where the verdict's sentence has it."""
        is_told = not self.report.faults and self.report.verdict == "agrees"
        return "" if is_told else f"{self.worst[:1].upper()}{self.worst[1:]}."

    @property
    def first_divergence(self) -> str:
        """The first tap beyond its budget, unless a finding names it."""
        first = self.report.first_divergence or ""
        return "" if first in {fault.where for fault in self.report.faults} else first

    @property
    def claims(self) -> list[ShownClaim]:
        return [
            ShownClaim(claim.id, claim.verdict, _share(claim.error, claim.budget), claim.where)
            for claim in self.report.claims
        ]

    @property
    def lists(self) -> dict[str, Sequence[str]]:
        """What was not compared, and the notes, under their headings."""
        return {"Not compared": self.report.not_compared, "Notes": self.report.notes}

    @property
    def compared(self) -> str:
        return count(len(self.report.measured), "comparison")


def _share(error: float, budget: float) -> str:
    return "exact" if budget == error == 0 else format_share(share(error, budget))
