"""The verdict and the coverage that follow from calls at many sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import lengths_of
from transparity_conformance.oracle.probes import Probe, probe_parameters
from transparity_conformance.oracle.reach.features import covered_sizes, exercised
from transparity_conformance.oracle.reach.long import LongProbe, long_probe
from transparity_conformance.oracle.reach.models import ReachModel, narrow
from transparity_conformance.ports.reach.calls import Reached
from transparity_conformance.report.comparison import share
from transparity_conformance.report.coverage import Coverage, range_of
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Report

CLAIM, LONG = "forward.reach", "forward.long"


def with_reach(report: Report, reached: Reached, config: TransformerConfig, probes: Iterable[Probe]) -> Report:
    """The report with the calls that were compared, its coverage, and the verdict that follows."""
    if not reached.wrong:
        return covered(report, config, [*probes, *(each.probe for each in reached.compared)], reached)
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


def covered(
    report: Report, config: TransformerConfig, probes: Sequence[Probe], reached: Reached | None = None
) -> Report:
    """The report with the coverage of calls that agree; one with something untested is inconclusive."""
    if report.verdict != "agrees":
        return dataclasses.replace(report, coverage=coverage_of(probes))
    reached = reached or Reached()
    seen, unseen = exercised(config, sorted(affordable(config, probes), key=_cost))
    untested = tuple(f"{name} = {getattr(config, name)}" for name in unseen) + tuple(reached.failed)
    coverage = dataclasses.replace(coverage_of(probes), features=seen, untested=untested)
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
    verdict = "inconclusive" if untested else report.verdict
    return dataclasses.replace(
        report, verdict=verdict, claims=claims, not_compared=(*report.not_compared, *missing), coverage=coverage
    )


def affordable(config: TransformerConfig, probes: Sequence[Probe]) -> list[Probe]:
    """The probes, with narrow models of the same system and the same lengths in place of large ones."""
    large = [probe for probe in probes if probe.is_large]
    if not large or config.reads_pixels:
        return list(probes)
    long = {max(probe.lengths) for probe in large if isinstance(probe, LongProbe)}
    others = [probe for probe in large if not isinstance(probe, LongProbe)]
    shapes = {tuple(probe.inputs[name].shape for name in config.input_names) for probe in others}
    calls = [(shape[0][0], tuple(length for _, length in shape)) for shape in sorted(shapes)]
    small = narrow(config, max([*long, *(length for _, lengths in calls for length in lengths)]))
    model = ReachModel("narrow", small, probe_parameters(small, 6), calls)
    few = [*model.probes, *(long_probe(model, length) for length in sorted(long))]
    return [*(probe for probe in probes if not probe.is_large), *few]


def _cost(probe: Probe) -> int:
    tokens = sum(probe.inputs[name].size for name in probe.config.input_names)
    return tokens * probe.config.embed_dim * probe.config.embed_dim


def coverage_of(probes: Iterable[Probe]) -> Coverage:
    """The lengths that every input had, and the batches and sizes."""
    every = list(probes)
    if not every:
        return Coverage()
    lengths = [
        {lengths_of(probe.config, probe.inputs)[name] for probe in every} for name in every[0].config.input_names
    ]
    batches = {len(probe.inputs[probe.config.input_names[0]]) for probe in every}
    sizes = covered_sizes(probe.config for probe in every)
    return Coverage(
        tuple(sorted(set.intersection(*lengths))),
        tuple(sorted(batches)),
        sizes=tuple(range_of(name, values) for name, values in sizes.items()),
    )
