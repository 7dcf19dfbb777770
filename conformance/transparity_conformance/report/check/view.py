"""The content of a check's result as plain data, from which terminal text, Markdown and HTML are made."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from transparity_conformance.report.check.findings import (
    Finding,
    beginnings,
    findings,
    remedy,
    sentence,
    shares_by_layer,
    ties,
    worst_share,
)
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import count, format_share
from transparity_conformance.report.report import ClaimResult, Report

CAPABILITIES = {
    "loss": "loss",
    "gradients": "gradients",
    "loss_and_gradients": "gradients",
    "generate": "generation",
    "beam_search": "beam search",
    "step": "cached decoding",
    "train": "training",
}
"""Names of capabilities, by the first part of the ids of their claims."""

VERDICTS = {"agrees": "agrees with", "diverges": "differs from", "inconclusive": "may or may not agree with"}
AGAINST = VERDICTS | {"diverges": "departs from"}
"""The verb for each verdict: about the reference, and about another implementation, which may itself be wrong."""


NAME_AND_REASON = re.compile(r"(?P<name>(\{.*?\}(?=: | \()|[^{:]|:(?! ))+): (?P<reason>.+)", re.DOTALL)
"""`NAME: REASON`; a name may end with the JSON of a field's value."""


class ShownClaim(NamedTuple):
    """One claim with its verdict and the share of its budget that is used."""

    id: str
    verdict: str
    share: str
    where: str


@dataclass(frozen=True)
class CheckView:
    """A report as sentences, rows and lists."""

    report: Report
    title: str
    """`my.py:load differs from the reference`."""
    system: str
    """`llama, float32`."""
    sentence: str
    beginnings: list[str]
    ties: str
    findings: list[Finding]
    layers: dict[str, list[float]]
    """For each kind of tap, the share of its budget that the segment in each layer uses."""
    worst: str
    """A clause about the largest share of a tolerance."""
    first_divergence: str
    """The first tap beyond its budget, unless a finding names it, or the findings explain everything."""
    claims: list[ShownClaim]
    not_compared: list[str]
    not_compared_in_short: list[str]
    """The same, where values that a loader refuses are only counted."""
    notes: list[str]
    compared: str
    """The compared values: `27 activations on 25 lengths from 1 to 1,025; loss, generation`."""
    coverage: str
    """The sizes and calls for which the verdict holds, in one line; empty if they are not known."""
    audit: list[str]
    """Lines about the audit of a loader; empty without an audit."""


def check_view(report: Report) -> CheckView:
    """Compute everything that is shown of a report."""
    is_named = report.first_divergence in {fault.where for fault in report.faults} or bool(remedy(report))
    return CheckView(
        report=report,
        title=_title(report),
        system=", ".join(filter(None, [_system(report), report.dtype])),
        sentence=sentence(report),
        beginnings=beginnings(report),
        ties=ties(report),
        findings=findings(report),
        layers=shares_by_layer(report.measured),
        worst=worst_share(report),
        first_divergence="" if is_named else report.first_divergence or "",
        claims=[_claim(claim) for claim in report.claims],
        not_compared=one_line_a_reason(report.not_compared),
        not_compared_in_short=one_line_a_reason(_in_short(report)),
        notes=each_kind_once(report.notes),
        compared=_compared(report),
        coverage="; ".join([report.coverage.line, *_reaches(report.claims)]) if report.coverage.line else "",
        audit=_audit(report),
    )


def _title(report: Report) -> str:
    verb = (AGAINST if report.reference else VERDICTS)[report.verdict]
    return f"{report.port or 'The port'} {verb} {report.reference or 'the reference'}"


def _system(report: Report) -> str:
    """Return the preset or family; empty with another implementation as the reference, because the title names it."""
    if report.reference:
        return ""
    return "your configuration" if report.preset == "config" else report.preset


def _compared(report: Report) -> str:
    """Return the compared activations, the sizes of inputs, and the compared capabilities."""
    taps = dict.fromkeys(item.tap for item in report.measured)
    forward = "the logits" if list(taps) == ["logits"] else count(len(taps), "activation")
    where = f" at {report.coverage.inputs}" if report.coverage.inputs else ""
    heads = dict.fromkeys(claim.id.partition(".")[0] for claim in report.claims)
    others = dict.fromkeys(CAPABILITIES[head] for head in heads if head in CAPABILITIES)
    return "; ".join(filter(None, [f"{forward}{where}" if taps else "", ", ".join(others)]))


def _in_short(report: Report) -> list[str]:
    """Omissions, without the fields that the audit names; values that the port refuses are counted."""
    if report.audit is None:
        return list(report.not_compared)
    fields, lines = report.audit.files[0], list(report.not_compared)
    named = tuple(f"{fields} {name}: " for name in report.audit.fields_with("not exercised"))
    refused = tuple(f"{fields} {each.name} {each.value}: " for each in report.audit.fields if each.counted == "refused")
    number = sum(line.startswith(refused) for line in lines)
    shown = [line for line in lines if not line.startswith((*named, *refused))]
    return shown + [f"{count(number, 'value')} of fields in {fields}: the port refuses them"] * bool(number)


def _audit(report: Report) -> list[str]:
    """Return the lines of the audit; if the forward pass is wrong, only the unread tensors, which may be the reason."""
    if report.audit is None:
        return []
    is_asked = any(claim.id.startswith("loader.") for claim in report.claims)
    if report.verdict != "diverges" or is_asked:
        return report.audit.lines
    unread = report.audit.tensors_with("never read")
    return [f"{report.audit.files[1]}: never read: {', '.join(unread)}"] if unread else []


def notes_on(finding: Finding, report: Report) -> list[str]:
    """The notes on an unexplained finding: the part that its line changes, and its shape."""
    if finding.causes:
        return []
    about = (*(line.place for line in finding.lines), *(fault.where for fault in finding.faults if fault.is_misshapen))
    return each_kind_once(note for note in report.notes if note.startswith(tuple(f"{name} " for name in about)))


def one_line_a_reason(lines: Sequence[str]) -> list[str]:
    """Join the lines `NAME: REASON` that have the same reason: `loss, generate: the port has no such method`."""
    names: dict[str, list[str]] = {}
    for line in lines:
        parts = NAME_AND_REASON.fullmatch(line)
        names.setdefault(parts["reason"] if parts else line, []).append(parts["name"] if parts else "")
    return [f"{', '.join(dict.fromkeys(named))}: {reason}" if named[0] else reason for reason, named in names.items()]


def each_kind_once(lines: Iterable[str]) -> list[str]:
    """Join lines that differ only in numbers or in the probe, and add how many were joined."""
    kinds: dict[str, list[str]] = {}
    for line in lines:
        kinds.setdefault(re.sub(r"\d+|(?<=on the probe )\w+", "#", line), []).append(line)
    return [first + (f" (and {count(len(more), 'note')} like it)" if more else "") for first, *more in kinds.values()]


def _reaches(claims: Sequence[ClaimResult]) -> list[str]:
    """Return the coverage of each claim that has its own."""
    return [f"{claim.id}: {claim.reach}" for claim in claims if claim.reach and claim.verdict == "agrees"]


def _claim(claim: ClaimResult) -> ShownClaim:
    is_exact = claim.budget == claim.error == 0
    used = "exact" if is_exact else format_share(share(claim.error, claim.budget))
    return ShownClaim(claim.id, claim.verdict, used, claim.where)
