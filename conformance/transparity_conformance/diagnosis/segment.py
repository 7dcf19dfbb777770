"""A wrong segment, and the difference that remains if the reference has faults."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.probe_result import ProbeResult, Results
from transparity_conformance.diagnosis.thresholds import LUCK, REMEASURED_WITHIN
from transparity_conformance.diagnosis.walk import Base, Impossible, base_of, dependents, segment_budgets, walk
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import less, share

Combination = tuple[Hypothesis, ...]


@dataclass(frozen=True)
class Segment:
    """A tap at which the port differs from the reference, and the results with this tap."""

    tap: str
    results: Mapping[str, ProbeResult]
    ranks: int = 1
    """The number of ranks on which the port runs; 1 if sharding cannot be the cause."""
    _bases: dict[str, Base] = field(default_factory=dict, init=False)
    _sizes: dict[tuple[Any, ...], tuple[Combination, float, float]] = field(default_factory=dict, init=False)

    @functools.cached_property
    def probes(self) -> list[Probe]:
        return [each.probe for each in self.results.values()]

    @property
    def is_whole_model(self) -> bool:
        """Whether the port's values are known at only one tap, such as the logits."""
        return all(len(each.recorded) == 1 for each in self.results.values())

    def budget(self, probe: Probe) -> float:
        """Return the segment's budget or, without results of the probe, the tap's budget in the whole model."""
        having = self.results.get(probe.name)
        if having is None:
            return probe.oracle.budget(self.tap, next(iter(self.results.values())).dtype)
        return having.budgets[self.tap]

    def _base(self, probe: Probe) -> Base | None:
        """Return a walk without faults that other walks can reuse; None if the port's values are known at several
        taps."""
        recorded = self.results[probe.name].recorded
        if len(recorded) > 1:
            return None
        if probe.name not in self._bases:
            self._bases[probe.name] = base_of(probe, recorded)
        return self._bases[probe.name]

    def value(self, probe: Probe, chosen: Combination) -> np.ndarray | None:
        """Return the reference's value at the tap with the faults `chosen`; None if the faults exclude each other or
        remove the tap."""
        given = self.results[probe.name].recorded if probe.name in self.results else {}
        base = self._base(probe) if given else None
        try:
            return walk(probe, given, chosen, until=self.tap, base=base).get(self.tap)
        except Impossible:
            return None

    def left(self, probe: Probe, chosen: Combination) -> np.ndarray:
        """Return the port's value minus the reference's with faults; 0 where a convention decides."""
        ours = self.value(probe, chosen)
        if ours is None:  # a fault may remove the tap, for example by moving a norm
            return np.array([np.inf])
        return less(self.results[probe.name].judged(self.tap, ours), ours)

    def share(self, probe: Probe, chosen: Combination) -> float:
        """Return the remaining difference relative to the budget. If the difference is slightly too large, measure the
        budget again with the faults in the reference."""
        error, budget, result = self.largest(probe, chosen), self.budget(probe), self.results[probe.name]
        for points, within in ((min(2, probe.neighbours), REMEASURED_WITHIN[result.dtype]), (probe.neighbours, LUCK)):
            if budget < error < within * budget:
                others = result.without([self.tap]).recorded
                changed = segment_budgets(probe, others, result.dtype, chosen, until=self.tap, neighbours=points)
                budget = max(budget, changed[self.tap])
        return share(error, budget)

    def is_contradicted(self, probe: Probe, chosen: Combination) -> bool:
        result = self.results[probe.name]
        if not result.right:
            return False
        try:
            computed = walk(probe, result.recorded, chosen, until=self.tap)
        except Impossible:
            return True
        errors = ((result.gap(tap, computed[tap]), tap) for tap in result.right if tap in computed)
        return any(error > REMEASURED_WITHIN[result.dtype] * result.budgets[tap] for error, tap in errors)

    def rms(self, probe: Probe, chosen: Combination) -> float:
        return self._size(probe, chosen)[0]

    def is_near(self, probe: Probe, chosen: Combination) -> bool:
        within = REMEASURED_WITHIN[self.results[probe.name].dtype]
        return self.largest(probe, chosen) <= within * (self.budget(probe) or 1)

    def vanishes(self, chosen: Combination, probes: Sequence[Probe] | None = None) -> bool:
        return all(self.share(probe, chosen) <= 1 for probe in (self.probes if probes is None else probes))

    def largest(self, probe: Probe, chosen: Combination) -> float:
        return self._size(probe, chosen)[1]

    def _size(self, probe: Probe, chosen: Combination) -> tuple[float, float]:
        # Hypotheses cannot be hashed, so the key contains their `id`. Storing them keeps each `id` unique.
        key = probe.name, *map(id, chosen)
        if key not in self._sizes:
            self.keep(probe, chosen, self.left(probe, chosen))
        return self._sizes[key][1:]

    def keep(self, probe: Probe, chosen: Combination, left: np.ndarray) -> None:
        self._sizes[probe.name, *map(id, chosen)] = chosen, rms(left), float(np.abs(left).max(initial=0.0))


def segment_of(results: Results, tap: str, ranks: int = 1) -> Segment:
    return Segment(tap, {each.probe.name: each for each in results.values() if tap in each.recorded}, ranks)


def rms(left: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(left)))) if left.size else 0.0


def where_it_acts(segment: Segment, known: Combination, chosen: Combination) -> Combination:
    """Restrict the faults to the taps at which they change the segment, and drop faults that do not change it. At some
    earlier taps, a fault has no effect, because the reference continues with the port's values at recorded taps."""
    order = [*segment.probes[0].oracle.expected]
    before = {*order[: order.index(segment.tap)]}

    def without(site: str) -> Combination:
        left = (dataclasses.replace(each, sites=tuple(one for one in each.sites if one != site)) for each in chosen)
        return tuple(new for new, old in zip(left, chosen, strict=True) if new.sites or not old.sites)

    def value(combination: Combination) -> list[np.ndarray | None]:
        return [segment.value(probe, (*known, *combination)) for probe in segment.probes]

    is_single = len(chosen) == 1 and len(chosen[0].sites) < 2
    for site in dict.fromkeys(site for each in chosen for site in each.sites if site in before and not is_single):
        if (narrower := without(site)) and _is_same(value(narrower), value(chosen)):
            chosen = narrower
    return chosen


def _is_same(values: Sequence[np.ndarray | None], others: Sequence[np.ndarray | None]) -> bool:
    pairs = zip(values, others, strict=True)
    return all(one is not None and other is not None and np.array_equal(one, other) for one, other in pairs)


def scope_of(tap: str) -> str:
    parts = tap.split(".")
    return ".".join(parts[:-1]) if len(parts) > 4 else ""


def layer_of(tap: str) -> str:
    return ".".join(tap.split(".")[:3])


def joined(results: Results, tap: str, faulty: Sequence[str], found: Collection[str]) -> tuple[str, Results]:
    """Join the wrong activations of a sublayer into one segment; return its end and the results without its other wrong
    taps. The end is the first tap that depends on all of them, or "" if the activations cannot be joined."""
    inside = {each for each in faulty if scope_of(tap) and scope_of(each) == scope_of(tap)}
    having = {key: result for key, result in results.items() if inside & result.recorded.keys()}
    if not having or not inside <= {*found}:
        return "", {}
    wrong = set[str]().union(*(_wrong(result, scope_of(tap)) for result in having.values()))
    end = _end(next(iter(having.values())), wrong, inside)
    kept = {key: result.without(wrong - {end}) for key, result in having.items() if end in result.recorded}
    return (end, kept) if wrong - {end} else ("", {})


def _wrong(result: ProbeResult, scope: str) -> set[str]:
    inside = {tap for tap in result.recorded if scope_of(tap) == scope}
    errors, within = result.gaps_from(result.without(inside).recorded), REMEASURED_WITHIN[result.dtype]
    return {tap for tap in inside if errors[tap] > within * result.budgets[tap]}


def _end(result: ProbeResult, wrong: Collection[str], inside: Collection[str]) -> str:
    given = result.without(wrong).recorded
    ours, common = walk(result.probe, given), {*wrong}
    for tap in {*inside} & result.recorded.keys():
        common &= {tap, *dependents(result.probe, {**given, tap: result.recorded[tap]}, ours, tap)}
    return min(common, key=result.order.index, default="")
