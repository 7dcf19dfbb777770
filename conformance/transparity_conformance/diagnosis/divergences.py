"""Explain every wrong segment of a port: a fault of the whole model first, then one segment after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from transparity_conformance.catalogue import whole_model
from transparity_conformance.catalogue.fault import Fault
from transparity_conformance.diagnosis.explain import Explanation, explain
from transparity_conformance.diagnosis.locate import candidate_sites
from transparity_conformance.diagnosis.probe_result import Results, error_profile, logits_error, still_wrong
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.search.fields import departures
from transparity_conformance.diagnosis.segment import Combination, Segment
from transparity_conformance.diagnosis.thresholds import NO_EXPLANATION
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.undetermined import judged
from transparity_conformance.report.comparison import gap, share
from transparity_conformance.report.report import Cause, Divergence

Progress = Callable[[str, int, int], None]
"""Receives the name of a stage, the steps done and their number."""

MOST_EXPLAINED = 40
"""Further segments are listed without a cause."""


def explain_all(
    results: Results, faulty: list[str], dtype: str, progress: Progress, clock: Clock, ranks: int = 1
) -> tuple[Divergence, ...]:
    """Explain every segment in `faulty`; those that an earlier cause explains, too, are left out.

    On several `ranks`, faults of the way in which the port is sharded are tried, too.
    """
    known = _whole_model_fault(results, faulty, dtype)
    divergences: list[Divergence] = []
    if known:
        divergences.append(_whole_model_divergence(results, faulty[0], known))
        faulty = still_wrong(results, known, dtype)
    others = {result.probe.name: result.probe for result in results.values()}
    explanations: dict[str, Explanation] = {}
    for done, tap in enumerate(faulty):
        progress("looking for causes", done, len(faulty))
        worst = max((each for each in results.values() if tap in each.errors), key=lambda each: each.share(tap))
        name, error, budget = worst.probe.name, worst.errors[tap], worst.budgets[tap]
        if tap in worst.misshapen or done >= MOST_EXPLAINED:
            divergences.append(Divergence(tap, error, budget, probe=name, is_misshapen=tap in worst.misshapen))
            continue
        segment = _segment(results, tap, dtype, ranks)
        if known and segment.vanishes(known):
            continue
        found = explain(segment, candidate_sites(worst, tap), known, others, explanations, clock)
        explanations[tap] = found
        known = (*known, *found.chosen)
        ours = walk(worst.probe, worst.recorded, until=tap)[tap]
        shown = worst.recorded
        actual = judged(worst.probe, tap, shown[tap], ours, dtype, shown)
        profile = {} if found.causes else error_profile(actual, ours)
        ties = found.indistinguishable, found.split_by
        divergences.append(Divergence(tap, error, budget, found.causes, *ties, name, profile))
        if found.remains:
            divergences.append(_remaining(segment, known))
    return tuple(_exchanged(_reshaped(divergence, explanations), explanations) for divergence in divergences)


def departures_note(results: Results, divergences: Sequence[Divergence], dtype: str) -> list[str]:
    """A remark on the fields that differ, where the logits alone are known and nothing explains them."""
    segment = _segment(results, "logits", dtype)
    if any(divergence.causes or divergence.is_misshapen for divergence in divergences) or not segment.probes:
        return []
    if not segment.is_whole_model:
        return []
    probe = max(segment.probes, key=lambda probe: segment.share(probe, ()))
    if probe.is_large:  # hundreds of walks, each of which takes long
        return []
    fields, left = departures(probe.config, lambda hypothesis: segment.rms(probe, (hypothesis,)))
    if left > NO_EXPLANATION:
        return []
    changed = " and ".join(f"{name} {value}" for name, value in fields.items())
    says = (
        f"nothing in the catalogue explains the logits; this may be no {probe.case}: with {changed} in the "
        f"configuration, {left:.1%} of the difference is left on the probe {probe.name}; `transparity fit` finds the "
        "configuration of a PyTorch module"
    )
    return [says]


def _segment(results: Results, tap: str, dtype: str, ranks: int = 1) -> Segment:
    having = [result for result in results.values() if tap in result.recorded]
    return Segment(
        tap,
        [result.probe for result in having],
        {result.probe.name: result.recorded for result in having},
        {result.probe.name: result.budgets[tap] for result in having},
        dtype,
        {result.probe.name: result.right for result in having},
        ranks,
    )


def _remaining(segment: Segment, known: Combination) -> Divergence:
    """The difference that no cause explains, on the probe where it is largest."""
    probe = max(segment.probes, key=lambda probe: segment.share(probe, known))
    recorded = segment.recorded[probe.name]
    ours = walk(probe, recorded, known, until=segment.tap)[segment.tap]
    actual = judged(probe, segment.tap, recorded[segment.tap], ours, segment.dtype, recorded)
    budget, profile = segment.budgets[probe.name], error_profile(actual, ours)
    return Divergence(segment.tap, gap(actual, ours), budget, probe=probe.name, profile=profile)


def _reshaped(divergence: Divergence, explanations: Mapping[str, Explanation]) -> Divergence:
    """Name the cause of another shape that explains all that follows, and gives the tap that shape."""
    for explanation in explanations.values() if divergence.is_misshapen else ():
        fault = _alone(explanation)
        if fault is not None and fault.reshapes == divergence.where and not explanation.remains:
            return dataclasses.replace(divergence, causes=explanation.causes)
    return divergence


def _exchanged(divergence: Divergence, explanations: Mapping[str, Explanation]) -> Divergence:
    """Name an exchange where each of two sites uses the other's parameters: one side alone is none."""
    fault = _alone(explanations.get(divergence.where))
    if not divergence.causes or fault is None or not (fault.taken_from and fault.exchange):
        return divergence
    source, ring = fault.taken_from(divergence.where), [divergence.where]
    while source not in ring:
        ring.append(source)
        further = _alone(explanations.get(source))
        if further is not None and (further.id, further.variant) == (fault.exchange.id, fault.exchange.variant):
            source = ring[0]  # the other side is explained by both sides at once
            break
        if further is None or further.taken_from is None or further.id != fault.id:
            return divergence
        source = further.taken_from(source)
    if source != ring[0]:
        return divergence
    name, says = fault.exchange.id, fault.exchange.description
    if len(ring) > 2:  # query, key and value
        name, says = "packed-order", "queries, keys and values are taken for each other in turn"
    cause = dataclasses.replace(divergence.causes[0], mistake=name, says=says)
    return dataclasses.replace(divergence, causes=(cause,))


def _alone(explanation: Explanation | None) -> Fault | None:
    """The fault that explains a segment by itself."""
    return explanation.chosen[0].fault if explanation and len(explanation.chosen) == 1 else None


def _whole_model_fault(results: Results, faulty: list[str], dtype: str) -> Combination:
    """The fault of the whole model that leaves the fewest segments wrong, if that is at most half of them."""
    if len(faulty) < 2:
        return ()
    config = next(iter(results.values())).probe.config
    most = min(len(faulty) // 2, len(faulty) - 2)
    candidates = [hypothesis for hypothesis in whole_model(config) if hypothesis.fault.id != "low-precision"]
    counted = [(len(still_wrong(results, (h,), dtype, most)), i, h) for i, h in enumerate(candidates)]
    left, _, best = min(counted, key=lambda item: item[:2], default=(most + 1, 0, None))
    return (best,) if best is not None and left <= most else ()


def _whole_model_divergence(results: Results, tap: str, known: Combination) -> Divergence:
    fault = known[0].fault
    worst = max(results.values(), key=lambda each: share(each.errors.get(tap, 0), each.budgets[tap]))
    cause = Cause(fault.id, fault.description, fault.value, logits_error(results, known), 1.0)
    return Divergence(tap, worst.errors[tap], worst.budgets[tap], (cause,), probe=worst.probe.name)
