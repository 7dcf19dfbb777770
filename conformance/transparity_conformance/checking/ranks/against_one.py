"""One rank against many of the same code: what differs beyond rounding is the sharding's doing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.checking.calls import run_all
from transparity_conformance.checking.ranks.group import RankGroup, isolated_of
from transparity_conformance.checking.ranks.joining import Differing
from transparity_conformance.diagnosis.judge import Actual, Progress
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.comparison import share
from transparity_conformance.report.ranks import Ranks
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Report
from transparity_conformance.running.loading import LoadError
from transparity_conformance.running.process.running import Port, told_dtype

CLAIM, REPLICAS = "ranks.one_and_many", "ranks.replicas"

SIDES = 2
"""Each of the two runs may be off by its budget."""


def against_one(
    group: RankGroup,
    build: Port,
    probes: Mapping[str, Probe],
    *,
    dtype: str,
    logits_only: bool,
    progress: Progress,
) -> Ranks:
    """Run many ranks and one of the same code on probes, and compare.

    Args:
        group: the processes of many ranks.
        build: the port on them.
        probes: those that the port refuses are left out.
        dtype, logits_only, progress: as for `check`.

    Raises `PortError` if the many fail; that one does is the reason why nothing was compared.
    """
    many = run_all(build, probes, progress, logits_only=logits_only)
    declared = next(iter(group.shardings.values())).placements
    placements = {name: str(placement) for name, placement in declared.items()}
    one = told_dtype(isolated_of(build).on(group.alone), dtype)
    try:
        alone = run_all(one, many.probes, progress, logits_only=logits_only)
    except (PortError, LoadError) as error:
        return Ranks(group.ranks, "inconclusive", reason=str(error), placements=placements)
    answered = {key: probe for key, probe in many.probes.items() if alone.probes.get(key) is probe}
    found = compared(group.ranks, answered, alone.actual, many.actual, dtype)
    return dataclasses.replace(found, placements=placements)


def compared(count: int, probes: Mapping[str, Probe], alone: Actual, actual: Actual, dtype: str) -> Ranks:
    """The tap where the two differ by the largest share of the budgets of both."""
    worst = Ranks(count, "agrees", where="logits")
    for key, probe in probes.items():
        for tap in [tap for tap in actual[key] if tap in alone[key]]:
            budget = SIDES * probe.oracle.budget(tap, dtype)
            error = judged_gap(probe, tap, actual[key][tap], alone[key][tap], dtype)
            if share(error, budget) > share(worst.error, worst.budget):
                worst = Ranks(count, "agrees", error, budget, tap, probe.name)
    differs = share(worst.error, worst.budget) > 1
    return dataclasses.replace(worst, one_rank="diverges") if differs else worst


def with_ranks(report: Report, ranks: Ranks, differing: Differing, probes: Mapping[str, Probe]) -> Report:
    """The report with the comparison of one rank and many, and with replicas that are not the same."""
    report = dataclasses.replace(report, ranks=ranks)
    if ranks.one_rank == "inconclusive":
        missing = f"one rank of the same code: {ranks.reason}"
        report = dataclasses.replace(report, not_compared=(*report.not_compared, missing))
    else:
        verdict = "agrees" if ranks.one_rank == "agrees" else "diverges"
        claim = ClaimResult(CLAIM, verdict, ranks.error, ranks.budget, ranks.where)  # type: ignore[arg-type]
        report = dataclasses.replace(report, claims=(*report.claims, claim))
        if verdict == "diverges" and report.verdict != "diverges":
            says = f"{ranks.count} ranks and 1 of the same code differ by more than rounding"
            cause = Cause("ranks-differ", says, None, 0.0, 1.0)
            report = _diverging(report, Divergence(ranks.where, ranks.error, ranks.budget, (cause,), probe=ranks.probe))
    return _with_replicas(report, differing, probes)


def _with_replicas(report: Report, differing: Differing, probes: Mapping[str, Probe]) -> Report:
    """The report with every value that is declared to be the same on all ranks, and is not.

    A replica may be off by the largest share of its size that a budget of a tap has.
    """
    allowed = max(_relative_budgets(probes, report.dtype), default=0.0)
    far = [each for each in differing.worst.values() if each.relative > allowed]
    known = {cause.mistake for fault in report.faults for cause in fault.causes}
    worst = max(differing.worst.values(), key=lambda each: each.relative, default=None)
    place = "" if worst is None else f"{worst.name} (ranks {worst.ranks[0]} and {worst.ranks[1]})"
    used = (0.0, 0.0) if worst is None else (worst.relative, allowed)
    claim = ClaimResult(REPLICAS, "diverges" if far else "agrees", *used, place)
    report = dataclasses.replace(report, claims=(*report.claims, claim))
    if not far or "gradient-not-reduced" in known:
        return report
    first = far[0]
    others = f" and {len(far) - 1} more" if far[1:] else ""
    says = f"ranks {first.ranks[0]} and {first.ranks[1]} have different values of {first.name}{others}, a replica"
    if report.verdict == "diverges":
        return dataclasses.replace(report, notes=(*report.notes, says))
    cause = Cause("replicas-differ", says, None, 0.0, 1.0)
    return _diverging(report, Divergence(first.name, first.gap, allowed * first.gap / first.relative, (cause,)))


def _relative_budgets(probes: Mapping[str, Probe], dtype: str) -> Iterator[float]:
    for probe in probes.values():
        for tap, value in probe.oracle.expected.items():
            largest = float(abs(value[abs(value) < float("inf")]).max(initial=0.0))
            budget = probe.oracle.budget(tap, dtype)
            if largest and budget < float("inf"):
                yield budget / largest


def _diverging(report: Report, divergence: Divergence) -> Report:
    first = report.first_divergence or divergence.where
    return dataclasses.replace(report, verdict="diverges", first_divergence=first, faults=(*report.faults, divergence))
