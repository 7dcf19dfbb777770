"""The content of a check as plain data, which the terminal and the page lay out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transparity_conformance.report.check.findings import (
    Finding,
    findings,
    sentence,
    shares_by_layer,
    ties,
    worst_share,
)
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count, format_share
from transparity_conformance.report.report import ClaimResult, Report


class ShownClaim(NamedTuple):
    """One claim: its verdict, and the share of its budget that it uses."""

    id: str
    verdict: str
    share: str
    where: str


@dataclass(frozen=True)
class CheckView:
    """A report as sentences, rows and lists."""

    report: Report
    sentence: str
    ties: str
    findings: list[Finding]
    layers: dict[str, list[float]]
    """The share of its budget that a tap uses in each layer by itself, by its pattern."""
    worst: str
    """The worst share of a budget, as a clause."""
    worst_sentence: str
    """The same as a sentence; empty where the verdict's sentence has it."""
    first_divergence: str
    """The first tap beyond its budget, unless a finding names it."""
    claims: list[ShownClaim]
    lists: dict[str, Sequence[str]]
    compared: str
    coverage: str
    """The range of the verdict in one line; empty if it is not known."""
    audit: list[str]
    """The audit of a loader in lines; none if there was none."""


def check_view(report: Report) -> CheckView:
    """Compute everything that is shown of a report."""
    worst, is_told = worst_share(report), not report.faults and report.verdict == "agrees"
    is_named = report.first_divergence in {fault.where for fault in report.faults}
    return CheckView(
        report=report,
        sentence=sentence(report),
        ties=ties(report),
        findings=findings(report),
        layers=shares_by_layer(report.measured),
        worst=worst,
        worst_sentence="" if is_told or (report.faults and not report.measured) else f"{worst[:1].upper()}{worst[1:]}.",
        first_divergence="" if is_named else report.first_divergence or "",
        claims=[_claim(claim) for claim in report.claims],
        lists={"Not compared": one_line_a_reason(report.not_compared), "Notes": report.notes},
        compared=count(len(report.measured), "comparison"),
        coverage="; ".join([report.coverage.line, *_reaches(report.claims)]) if report.coverage.line else "",
        audit=[] if report.audit is None else report.audit.lines,
    )


def one_line_a_reason(lines: Sequence[str]) -> list[str]:
    """The lines `NAME: REASON`, those of one reason as one: `loss, generate: the port does not offer it`."""
    names: dict[str, list[str]] = {}
    for line in lines:
        name, colon, reason = line.partition(": ")
        names.setdefault(reason if colon else line, []).append(name if colon else "")
    return [f"{', '.join(named)}: {reason}" if named[0] else reason for reason, named in names.items()]


def _reaches(claims: Sequence[ClaimResult]) -> list[str]:
    """The reach of each claim that has one of its own."""
    return [f"{claim.id}: {claim.reach}" for claim in claims if claim.reach and claim.verdict == "agrees"]


def _claim(claim: ClaimResult) -> ShownClaim:
    is_exact = claim.budget == claim.error == 0
    used = "exact" if is_exact else format_share(share(claim.error, claim.budget))
    return ShownClaim(claim.id, claim.verdict, used, claim.where)
