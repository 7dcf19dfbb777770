"""The answers to the optional sections of a bundle, judged like those of a port in this process."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np

from transparity_conformance.capabilities.capability import Answers, Capability, ForwardPass, Requests, Way
from transparity_conformance.capabilities.compare import why_not
from transparity_conformance.checkpoints.files import BundleError
from transparity_conformance.exchange.bundle.sections import Section
from transparity_conformance.report.capability_result import CapabilityResult, not_compared
from transparity_conformance.report.report import Verdict

FEW = "too little of the forward pass was compared"

NO_TOKEN = -1
"""Fills the columns after the last token, as a tensor has one width."""


def judge_sections(
    sections: Collection[Section],
    answers: Answers,
    forward: ForwardPass,
    verdict: Verdict,
    *,
    stopped: bool = False,
) -> CapabilityResult:
    """Compare answers with the reference's, where the `verdict` on the forward pass allows for it.

    With `stopped`, the port was stopped, and may have been about to write the tensors that are missing.
    """
    found = CapabilityResult()
    for section in sections:
        found += _judge_section(section, answers, forward, verdict, stopped=stopped)
    return found


def _judge_section(
    section: Section, answers: Answers, forward: ForwardPass, verdict: Verdict, *, stopped: bool
) -> CapabilityResult:
    row, found = section.row, CapabilityResult()
    if reason := _why_none(section, verdict):
        return not_compared(f"{row.ways[0].claim}: {reason}")
    for way in row.ways:
        verdicts = {claim.id: claim.verdict for claim in found.claims}
        if reason := section.reasons[way.claim] or why_not(way, forward, verdicts):
            found += not_compared(f"{way.claim}: {reason}")
            continue
        of_way = section.requests[way.claim]
        requests = {key: request for key, request in of_way.items() if way.is_comparable(key, forward)}
        found += _judge_way(row, way, requests, answers, forward, stopped=stopped)
    for claim in found.claims:
        if claim.verdict == "agrees" and not math.isfinite(claim.budget):
            raise BundleError(f"The section {row.name} asks for numbers that are too large: {claim.id} has no budget.")
    return found


def _why_none(section: Section, verdict: Verdict) -> str:
    """The reason why no way is compared; empty if one is."""
    of_all = set(section.reasons.values())
    if len(of_all) == 1 and (reason := of_all.pop()):
        return reason
    reasons = {"diverges": section.row.if_forward_diverges, "inconclusive": FEW}
    return reasons.get(verdict, "") if section.row.if_forward_diverges else ""


def _judge_way(
    row: Capability, way: Way, requests: Requests, answers: Answers, forward: ForwardPass, *, stopped: bool
) -> CapabilityResult:
    names = {key: list(row.shapes(key, request)) for key, request in requests.items()}
    missing = {key: [name for name in names[key] if name not in answers] for key in requests}
    skipped = _not_written(way, requests, names, missing)
    if row.missing_is_wrong and not stopped:
        judged = {key: request for key, request in requests.items() if len(missing[key]) < len(names[key])}
    else:
        judged = {key: request for key, request in requests.items() if not missing[key]}
    if requests and not judged:
        return skipped
    return skipped + row.judge(way, judged, {name: _trimmed(name, value) for name, value in answers.items()}, forward)


def _trimmed(name: str, value: np.ndarray) -> np.ndarray:
    """Tokens without the columns after the last one; anything else as it is."""
    if not name.endswith("/tokens"):
        return value
    used = np.flatnonzero((value != NO_TOKEN).any(axis=0))
    return value[:, : used[-1] + 1 if used.size else 0]


def _not_written(
    way: Way, requests: Requests, names: dict[str, list[str]], missing: dict[str, list[str]]
) -> CapabilityResult:
    begins = f"{way.claim}: "
    lacking = [key for key in requests if missing[key]]
    written = [key for key in requests if len(missing[key]) < len(names[key])]
    if all(len(names[key]) == 1 for key in requests):
        some = f" for {', '.join(requests[key].name for key in lacking)}" if written else ""
        return not_compared(*([f"{begins}the port did not write it{some}"] if lacking else []))
    if not written:
        return not_compared(f"{begins}the port did not write any")
    several = len(requests) > 1
    return not_compared(
        *(
            f"{begins}{f'{requests[key].name}, ' if several else ''}the port did not write "
            f"{_some([name.partition('/')[2] for name in missing[key]], len(names[key]))}"
            for key in lacking
        )
    )


def _some(missing: list[str], of: int) -> str:
    listed = ", ".join(missing[:3]) + (", …" if missing[3:] else "")
    return "any" if len(missing) == of else f"{len(missing)} of {of} ({listed})"
