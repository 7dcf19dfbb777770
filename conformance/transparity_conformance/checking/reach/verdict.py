"""The verdict and the coverage that follow from calls at many sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.checking.reach.calls import Reached
from transparity_conformance.diagnosis.reach.coverage import coverage_of, covered
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.reach.long import LongProbe
from transparity_conformance.report.comparison import share
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Report

CLAIM, LONG = "forward.reach", "forward.long"


def with_reach(report: Report, reached: Reached, config: TransformerConfig, probes: Iterable[Probe]) -> Report:
    """The report with the calls that were compared, its coverage, and the verdict that follows."""
    if not reached.wrong:
        return reached_and_covered(report, config, [*probes, *(each.probe for each in reached.compared)], reached)
    worst = max(reached.wrong, key=lambda each: share(each.error, each.budget))
    first = reached.wrong[0]
    says = "an object that is built for this call alone is right: something is kept between calls"
    fault = Divergence(
        "logits",
        first.error,
        first.budget,
        (Cause("history", says, None, 0.0, 1.0),) if reached.is_history else (),
        probe=first.probe.name,
        profile=dict(first.profile),
        is_misshapen=first.error == np.inf and not first.profile,
    )
    claim_id = LONG if isinstance(first.probe, LongProbe) else CLAIM
    claim = ClaimResult(claim_id, "diverges", worst.error, worst.budget, f"logits ({worst.probe.name})")
    coverage = coverage_of([*probes, *(each.probe for each in reached.compared)])
    return dataclasses.replace(
        report,
        verdict="diverges",
        first_divergence="logits",
        faults=(*report.faults, fault),
        claims=(*report.claims, claim),
        not_compared=(*report.not_compared, *reached.refused, *reached.failed),
        notes=(*report.notes, boundary(reached), *reached.notes),
        coverage=coverage,
    )


def boundary(reached: Reached) -> str:
    """The calls on which a port is wrong, in one sentence."""
    wrong = reached.wrong
    names = [each.probe.name for each in wrong]
    lengths = {max(each.probe.lengths) for each in wrong}
    right = {max(each.probe.lengths) for each in reached.compared if not each.is_wrong}
    listed = "; ".join(names[:4]) + (f"; and {len(names) - 4} more" if names[4:] else "")
    text = f"wrong on {len(wrong)} of {len(reached.compared)} calls at other sizes ({listed})"
    if right and lengths and max(right) < min(lengths):
        return f"{text}; right up to length {max(right)}, wrong from length {min(lengths)} on"
    return text


def reached_and_covered(report: Report, config: TransformerConfig, probes: Sequence[Probe], reached: Reached) -> Report:
    """Return the report of a port that agrees, with its coverage, the claims on its reach, and what was left out."""
    covering = covered(report, config, probes, reached.failed)
    if report.verdict != "agrees":
        return covering
    claims = report.claims
    long = [each for each in reached.compared if isinstance(each.probe, LongProbe)]
    others = [each for each in reached.compared if each not in long]
    for claim, compared in ((CLAIM, others), (LONG, long)):
        if compared:
            worst = max(compared, key=lambda each: share(each.error, each.budget))
            claims += (ClaimResult(claim, "agrees", worst.error, worst.budget, f"logits ({worst.probe.name})"),)
    missing = list(reached.refused)
    if reached.left_out:
        lengths = sorted({max(probe.lengths) for probe in reached.left_out})
        listed = ", ".join(map(str, lengths[:12])) + (", …" if lengths[12:] else "")
        missing.append(f"{len(reached.left_out)} calls of lengths {listed}: the port takes too long for all of them")
    return dataclasses.replace(covering, claims=claims, not_compared=(*report.not_compared, *missing))
