"""The stages for several ranks: compare several ranks with one rank, replicas with each other, and dropout masks.

If the same code returns different results on several ranks and on one rank, beyond rounding, the sharding is wrong. A
port may have a method `with_dropout(**tokens)`: a forward pass in training mode that returns a dict of taps. Ranks must
drop different entries of their shards, but the same entries of a replicated value.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np

from transparity_conformance.capabilities.port_calls import PortError
from transparity_conformance.capabilities.sharding import Placement, split
from transparity_conformance.checking.calls import run_all
from transparity_conformance.checking.stages.evidence import Evidence
from transparity_conformance.diagnosis.judge import Actual, Progress
from transparity_conformance.oracle.probes import Probe, as_given
from transparity_conformance.oracle.undetermined import judged_gap
from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import some
from transparity_conformance.report.parts import RanksComparison
from transparity_conformance.report.report import Cause, ClaimResult, Divergence, Report
from transparity_conformance.running.loading import LoadError
from transparity_conformance.running.process.joining import Differing
from transparity_conformance.running.process.ranks import ProcessGroup, isolated_of
from transparity_conformance.running.process.running import Port, built, in_precision, sharding_of

CLAIM, REPLICAS, DROPOUT = "ranks.one_and_many", "ranks.replicas", "ranks.dropout"

METHOD = "with_dropout"
"""The method of a port that runs the forward pass in training mode."""

SIDES = 2
"""The results of two runs may differ by this number of budgets, because each run rounds."""

FLUKE = 1e-6
"""Equal dropout masks mean a shared seed if the probability that they are equal by chance is below this number."""


def run_one_rank(evidence: Evidence) -> None:
    arguments, group = evidence.arguments, evidence.ranks
    how = arguments.dtype, arguments.logits_only, evidence.progress
    evidence.one_rank = against_one(group, evidence.build, arguments.probes, *how)


def against_one(
    group: ProcessGroup, build: Port, probes: Mapping[str, Probe], dtype: str, logits_only: bool, progress: Progress
) -> RanksComparison:
    """Compare the results on several ranks and on one rank. If the run on one rank fails, return `inconclusive`."""
    many = run_all(build, probes, progress, logits_only=logits_only)
    declared = sharding_of(next(iter(many.forwards.values()))).placements
    placements = {name: str(placement) for name, placement in declared.items()}
    one = in_precision(dataclasses.replace(isolated_of(build), process=group.alone), dtype)
    try:
        alone = run_all(one, many.probes, progress, logits_only=logits_only)
    except (PortError, LoadError) as error:
        return RanksComparison(group.ranks, "inconclusive", reason=str(error), placements=placements)
    answered = {key: probe for key, probe in many.probes.items() if alone.probes.get(key) is probe}
    found = compared(group.ranks, answered, alone.actual, many.actual, dtype)
    return dataclasses.replace(found, placements=placements)


def compared(count: int, probes: Mapping[str, Probe], alone: Actual, actual: Actual, dtype: str) -> RanksComparison:
    worst = RanksComparison(count, "agrees", where="logits")
    for key, probe in probes.items():
        for tap in [tap for tap in actual[key] if tap in alone[key]]:
            budget = SIDES * probe.oracle.budget(tap, dtype)
            error = judged_gap(probe, tap, actual[key][tap], alone[key][tap], dtype)
            if share(error, budget) > worst.share:
                worst = RanksComparison(count, "agrees", error, budget, tap, probe.name)
    return dataclasses.replace(worst, one_rank="diverges") if worst.is_wrong else worst


def judge_ranks(evidence: Evidence) -> None:
    """Compare several ranks with one rank, and replicas with each other. If the port agrees, also compare dropout."""
    group, probes = evidence.ranks, evidence.arguments.probes
    assert evidence.one_rank is not None
    evidence.report = adding_ranks(evidence.report, evidence.one_rank, group.differing, probes)
    if evidence.agrees():
        judge_dropout(evidence, next(iter(probes.values())))


def adding_ranks(report: Report, ranks: RanksComparison, differing: Differing, probes: Mapping[str, Probe]) -> Report:
    """Add two claims to the report: several ranks equal one rank, and replicas are equal."""
    if ranks.one_rank == "inconclusive":
        report = report.adding(ranks=ranks, not_compared=[f"the same code on one rank: {ranks.reason}"])
        return _adding_replicas(report, differing, probes)
    faults = []
    if ranks.one_rank == "diverges" and report.verdict != "diverges":
        says = f"the results on {ranks.count} ranks and on 1 rank differ by more than rounding"
        cause = Cause("ranks-differ", says)
        faults = [Divergence(ranks.where, ranks.error, ranks.budget, (cause,), probe=ranks.probe)]
    claim = ClaimResult(CLAIM, ranks.one_rank, ranks.error, ranks.budget, ranks.where)
    return _adding_replicas(report.adding(*faults, ranks=ranks, claims=[claim]), differing, probes)


def _adding_replicas(report: Report, differing: Differing, probes: Mapping[str, Probe]) -> Report:
    """Add a claim that replicas are equal. Add a fault if replicas differ by more than the largest relative budget."""
    allowed = max(_relative_budgets(probes, report.dtype), default=0.0)
    far = [each for each in differing.worst.values() if each.relative > allowed]
    worst = max(differing.worst.values(), key=lambda each: each.relative, default=None)
    used = (0.0, 0.0, "")
    if worst is not None:
        used = worst.relative, allowed, f"{worst.name} (ranks {worst.ranks[0]} and {worst.ranks[1]})"
    report = report.adding(claims=[ClaimResult.of(REPLICAS, *used)])
    if not far or "gradient-not-reduced" in {cause.mistake for fault in report.faults for cause in fault.causes}:
        return report
    first = far[0]
    names = some([each.name for each in far])
    says = f"ranks {first.ranks[0]} and {first.ranks[1]} have different values of the replicated {names}"
    if report.verdict == "diverges":
        return report.adding(notes=[says])
    budget = allowed * first.gap / first.relative
    cause = Cause("replicas-differ", says)
    return report.adding(Divergence(first.name, first.gap, budget, (cause,)))


def _relative_budgets(probes: Mapping[str, Probe], dtype: str) -> Iterator[float]:
    for probe in probes.values():
        for tap, value in probe.oracle.expected.items():
            largest = float(abs(value[abs(value) < float("inf")]).max(initial=0.0))
            budget = probe.oracle.budget(tap, dtype)
            if largest and budget < float("inf"):
                yield budget / largest


def judge_dropout(evidence: Evidence, probe: Probe) -> None:
    """If the port has the method `with_dropout`, compare which entries the ranks drop."""
    forward = cast(Any, built(evidence.build, probe))
    if not forward.offers(METHOD):
        evidence.add(not_compared=[f"{METHOD}: the port has no such method"])
        return
    tokens = {name: as_given(value) for name, value in probe.inputs.items()}
    answers = [dict(answer) for answer in forward.answers_by_rank(METHOD, **tokens)]
    sharding, expected = sharding_of(forward), probe.oracle.expected
    names = [tap for tap in expected if all(tap in answer for answer in answers)]
    wrong = [
        Divergence(tap, 1.0, 0.0, (cause,), probe=probe.name)
        for tap in names
        if (cause := _wrong_drops([np.asarray(each[tap]) for each in answers], sharding.of(tap), expected[tap]))
    ]
    evidence.add(*wrong, claims=[ClaimResult.of(DROPOUT, float(bool(wrong)), 0.0, ", ".join(names[:1]))])


def _wrong_drops(values: Sequence[np.ndarray], placement: Placement, expected: np.ndarray) -> Cause | None:
    parts = split(expected, placement, len(values))
    if [value.shape for value in values] != [part.shape for part in parts]:
        return None
    dropped = [(value == 0) & (part != 0) for value, part in zip(values, parts, strict=True)]
    for rank in [rank for rank in range(1, len(values)) if parts[rank].shape == parts[0].shape]:
        both = (parts[0] != 0) & (parts[rank] != 0)
        is_same = np.array_equal(dropped[0][both], dropped[rank][both])
        if placement.kind == "replicated" and not is_same:
            says = f"ranks 0 and {rank} drop different entries of a value that is replicated on all ranks"
            return Cause("dropout-on-replicas", says)
        if placement.kind == "sharded" and is_same and _chance(dropped[0][both]) < FLUKE:
            says = f"ranks 0 and {rank} drop the same entries of their shards, because they have the same seed"
            return Cause("dropout-seed-shared", says)
    return None


def _chance(dropped: np.ndarray) -> float:
    """Return the probability that an independent random mask with the same dropout rate equals this mask."""
    rate = float(dropped.mean()) if dropped.size else 0.0
    return float((rate**2 + (1 - rate) ** 2) ** dropped.size)
