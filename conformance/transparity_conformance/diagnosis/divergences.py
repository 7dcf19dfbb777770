"""Explain all wrong segments (computations between two taps), by faults of the whole model or of single segments.

`consistent` drops causes and divergences that may come from operations matched with the wrong tap, by these rules. Run
the reference with all causes, and with the port's values at unexplained taps. If the run does not reproduce the port's
logits, drop the causes at matched taps and at the logits. If the logits are unexplained, the run must reproduce the
activation before the logits.

Below, A is a matched tap, and A reads a tap B if the reference computes A directly from B. Also drop the cause at A if
A reads an unexplained matched tap, or if an unexplained tap reads A. If the logits are unexplained, drop the cause at A
if all taps that read A lost their causes.

Drop an unexplained divergence at A if A reads a matched tap that has no cause or lost its cause. Drop an explained
divergence at A if, in the reference with all causes, no tap reads A.

If some tap is unexplained, drop a divergence that lost its cause and whose tap has the same value as another tap. Also
drop a divergence that lost its cause if its tap reads an unexplained matched tap.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from transparity_conformance.catalogue import whole_model
from transparity_conformance.catalogue.fault import Fault
from transparity_conformance.diagnosis.explain import Explanation, explain, explained_by
from transparity_conformance.diagnosis.locate import candidate_sites
from transparity_conformance.diagnosis.probe_result import (
    ProbeResult,
    Results,
    error_profile,
    logits_error,
    still_wrong,
)
from transparity_conformance.diagnosis.search.answer import Answer, by_id
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.search.fields import fewest_wrong
from transparity_conformance.diagnosis.segment import Combination, Segment, joined, layer_of, scope_of, segment_of
from transparity_conformance.diagnosis.thresholds import BEAM, DEEPEST, PAIR
from transparity_conformance.diagnosis.walk import Impossible, dependents, walk
from transparity_conformance.report.comparison import gap
from transparity_conformance.report.report import Cause, Divergence

Progress = Callable[[str, int, int], None]


def explain_all(
    results: Results,
    faulty: list[str],
    progress: Progress,
    clock: Clock,
    ranks: int = 1,
    answer: Answer | None = None,
) -> tuple[Divergence, ...]:
    """Explain the segments in `faulty`. On several `ranks`, also try faults of sharding. With an `answer`, the faults
    must also reproduce the port's logits, because some matches may be wrong. Try single faults, then segment by
    segment, then pairs."""
    if answer and (told := _by_answer(answer, results, faulty, answer.singles)):
        return told
    segments = _BySegment(results, clock, ranks, answer)
    fewest, divergences = segments.run(faulty, progress), segments.divergences
    if answer and answer.is_wrong:
        every = [fewest] if fewest else answer.pairs()
        if told := _by_answer(answer, results, faulty, every, segments.explanations):
            return told
        divergences = consistent(answer, results, divergences, segments.explanations)
    return _named(divergences, segments.explanations)


def consistent(
    answer: Answer, results: Results, divergences: Sequence[Divergence], explained: Mapping[str, Explanation]
) -> list[Divergence]:
    """Drop causes and divergences that may come from wrong matches, by the rules in the docstring of this module."""
    unexplained = [each.where for each in divergences if not each.causes and not each.is_misshapen]
    told = tuple(hypothesis for each in explained.values() for hypothesis in each.chosen)
    after = {each for tap in {*unexplained} & {*answer.found} for each in fed_by(tap, results)}
    given = [tap for tap in unexplained if tap not in after]  # later values would hide the effects of the causes
    end = _before_logits(answer, results) if "logits" in unexplained else "logits"
    follows = bool(end) and answer.follows(results, told, [tap for tap in given if tap != "logits"], end)

    def contradicts(tap: str) -> bool:
        if tap not in {*answer.found, "logits"}:
            return False
        return not follows or tap in after or not {*unexplained}.isdisjoint(fed_by(tap, results))

    contradicted = set[str]()
    for tap in reversed([each.where for each in divergences if each.causes]):
        is_unconfirmed = end != "logits" and tap in answer.found and contradicted >= fed_by(tap, results) != set()
        contradicted |= {tap} if is_unconfirmed or contradicts(tap) else set()
    follow = after & {*answer.found}
    passed = {tap for tap in contradicted if unexplained and (tap in follow or _is_passed(tap, results))}
    after |= {each for tap in (contradicted & {*answer.found}) - passed for each in fed_by(tap, results)}

    def is_told(each: Divergence) -> bool:
        if not each.causes:
            return each.is_misshapen or each.where not in after or each.where not in {*answer.found, "logits"}
        with contextlib.suppress(Impossible):
            return each.where not in answer.found or bool(fed_by(each.where, results, told))
        return True

    rest = (each for each in divergences if each.where not in passed and is_told(each))
    kept = [each.unexplained if each.where in contradicted else each for each in rest]
    return _of_first_layer(answer, results, kept, explained)


def _before_logits(answer: Answer, results: Results) -> str:
    """Return the matched tap from which the reference computes the logits directly; "" unless there is exactly one."""
    taps = [tap for tap in answer.found if tap in next(iter(results.values())).recorded]
    before = [tap for tap in taps if "logits" in fed_by(tap, results)]
    return before[0] if len(before) == 1 else ""


def _of_first_layer(
    answer: Answer, results: Results, divergences: list[Divergence], explanations: Mapping[str, Explanation]
) -> list[Divergence]:
    """Among unexplained matched taps, keep only the taps of the first layer that has any. Keep all divergences if the
    logits are unexplained, a shape is wrong, or the causes and the port's values at unexplained taps explain the
    logits."""
    open_ = [each.where for each in divergences if not each.causes]
    told = [tap for tap in dict.fromkeys(each.where for each in divergences) if tap not in open_]
    chosen = tuple(each for tap in told if tap in explanations for each in explanations[tap].chosen)
    first = next((tap for tap in open_ if tap in answer.found), None)
    is_unknown = "logits" in open_ or any(each.is_misshapen for each in divergences)
    if first is None or is_unknown or answer.follows(results, chosen, open_):
        return divergences
    later = {tap for tap in open_ if tap in answer.found and layer_of(tap) != layer_of(first)}
    return [each for each in divergences if each.where not in later]


def _is_passed(tap: str, results: Results) -> bool:
    having = [result.recorded for result in results.values() if tap in result.recorded]
    others = set.intersection(*({name for name in each if name != tap} for each in having))
    return any(all(np.array_equal(each[tap], each[name]) for each in having) for name in others)


def fed_by(tap: str, results: Results, known: Combination = ()) -> set[str]:
    result = next(each for each in results.values() if tap in each.recorded)
    return dependents(result.probe, result.recorded, walk(result.probe, result.recorded, known), tap, known) - {tap}


def _by_answer(
    answer: Answer,
    results: Results,
    faulty: list[str],
    every: Sequence[Combination],
    earlier: Mapping[str, Explanation] = MappingProxyType({}),
) -> tuple[Divergence, ...]:
    wrong = [(answer.wrong_with(results, faulty, each), each) for each in every[:BEAM]]
    wrong.sort(key=lambda each: len(each[0]))
    if not wrong or not {*wrong[0][0]} <= {*answer.found, "logits"}:
        return ()
    told, ranked = wrong[0][1], [each for _, each in wrong]
    answer.told, answer.contradicts = told, wrong[0][0]
    probes = {result.probe.name: result.probe for result in results.values()}
    elsewhere = [each for each in told if not {*each.sites} & {*faulty}]
    divergences, explanations = list[Divergence](), dict[str, Explanation]()
    for tap in faulty:
        segment = segment_of(results, tap, answer.ranks)
        best = next((part for part in _parts(told, tap) if segment.vanishes(part)), ())
        if any(tap in each.sites or each in elsewhere for each in best):
            elsewhere = [each for each in elsewhere if each not in best]
            kept = earlier.get(tap)
            is_same = kept is not None and _ids(kept.chosen) == _ids(best)
            if kept and is_same and _sites(best) <= {*_sites(kept.chosen), *faulty}:
                explanations[tap] = kept
            else:
                explanations[tap] = explained_by(segment, (), [best, *_rivals(segment, best, ranked[1:])], probes)
            divergences.append(divergence_of(results, tap, explanations[tap]))
        elif tap in _worst(results, tap).misshapen:
            divergences.append(divergence_of(results, tap, Explanation()))
    placed = {name for each in explanations.values() for name in _ids(each.chosen)}
    if not _ids(told) <= placed:  # the remaining faults act at taps that no operation matches
        known = tuple(each for each in told if each.fault.id in placed)
        rests = [tuple(one for one in each if one.fault.id not in placed) for each in ranked if placed <= _ids(each)]
        explanations["logits"] = explained_by(answer.segment, known, rests, probes)
        divergences.append(divergence_of(results, "logits", explanations["logits"]))
    return _named(divergences, explanations)


def _parts(told: Combination, tap: str) -> Iterator[Combination]:
    yield from ((one,) for one in told)
    yield tuple(each for each in told if tap in each.sites)
    kinds = list(by_id(told).values())
    for size in range(1, min(len(kinds), DEEPEST) + 1):
        yield from (tuple(itertools.chain(*part)) for part in itertools.combinations(kinds, size))
    yield told


def _rivals(segment: Segment, best: Combination, others: Sequence[Combination]) -> list[Combination]:
    parts = [part for each in others for part in (each, *((one,) for one in each))]
    return [part for part in parts if len(part) == len(best) and segment.vanishes(part)]


def _ids(chosen: Combination) -> set[str]:
    return {each.fault.id for each in chosen}


def _sites(chosen: Combination) -> set[str]:
    return {site for each in chosen for site in each.sites}


class _BySegment:
    """The search for causes, segment after segment. With an `answer`, the search ends when the faults reproduce the
    logits. An unexplained segment grows to its whole sublayer."""

    def __init__(self, results: Results, clock: Clock, ranks: int, answer: Answer | None) -> None:
        self.results, self.clock, self.ranks, self.answer = results, clock, ranks, answer
        self.others = {result.probe.name: result.probe for result in results.values()}
        self.divergences: list[Divergence] = []
        self.explanations: dict[str, Explanation] = {}
        self.joint: dict[str, Explanation] = {}
        self.known: Combination = ()

    def run(self, faulty: Sequence[str], progress: Progress) -> Combination:
        """Explain the segments. Return the smallest set of faults that reproduces the port's logits, or ()."""
        self.known = _whole_model_fault(self.results, [*faulty])
        if self.known:
            fault, residual = self.known[0].fault, logits_error(self.results, self.known)
            everywhere = Explanation((Cause(fault.id, fault.description, fault.value, residual, 1.0),))
            self.divergences.append(divergence_of(self.results, faulty[0], everywhere))
            faulty = still_wrong(self.results, self.known)
        answer, new = self.answer, Combination()
        for done, tap in enumerate(faulty):
            progress("looking for causes", done, len(faulty))
            before = self.known
            if tap in _worst(self.results, tap).misshapen:
                self.divergences.append(divergence_of(self.results, tap, Explanation()))
            elif not self._is_known(tap):
                self._explain(tap, faulty)
            last = tuple(each for each in self.known if each not in before)
            if answer and last and (fewest := answer.fewest_of(self.known, last)):
                return fewest
            new = (*new, *last)
            if answer and new and layer_of(tap) not in map(layer_of, faulty[done + 1 : done + 2]):
                if fewest := answer.with_one_more(self.known, new):
                    return fewest
                new = ()
        return ()

    def _is_known(self, tap: str) -> bool:
        is_joint = self.joint.get(scope_of(tap), Explanation()).chosen
        return bool(is_joint or (self.known and segment_of(self.results, tap, self.ranks).vanishes(self.known)))

    def _explain(self, tap: str, faulty: Sequence[str]) -> None:
        segment, scope = segment_of(self.results, tap, self.ranks), scope_of(tap)
        sites = candidate_sites(_worst(self.results, tap), tap)
        found = explain(segment, sites, self.known, self.others, self.explanations, self.clock)
        if self.answer and not found.chosen and scope not in self.joint:
            joint = self.joint[scope] = self._explain_jointly(tap, faulty, self.answer.found)
            if joint.chosen:
                found, self.known = joint, self._outside(scope)
                self.divergences = [each for each in self.divergences if scope_of(each.where) != scope]
                self.explanations = {at: each for at, each in self.explanations.items() if scope_of(at) != scope}
        self.explanations[tap], self.known = found, (*self.known, *found.chosen)
        self.divergences.append(divergence_of(self.results, tap, found, with_profile=True))
        if found.remains:
            self.divergences.append(_remaining(segment, self.known))

    def _explain_jointly(self, tap: str, faulty: Sequence[str], found: Collection[str]) -> Explanation:
        """Explain a tap's sublayer as one segment; the reference also has the faults that were found in other
        sublayers."""
        end, results = joined(self.results, tap, faulty, found)
        if not end:
            return Explanation()
        segment, sites = segment_of(results, end, self.ranks), candidate_sites(_worst(results, end), end)
        return explain(segment, sites, self._outside(scope_of(tap)), self.others, self.joint, self.clock, PAIR)

    def _outside(self, scope: str) -> Combination:
        return tuple(each for each in self.known if scope not in map(scope_of, each.sites))


def _named(divergences: Sequence[Divergence], explanations: Mapping[str, Explanation]) -> tuple[Divergence, ...]:
    return tuple(_exchanged(_reshaped(each, explanations), explanations) for each in divergences)


def _worst(results: Results, tap: str) -> ProbeResult:
    return max((each for each in results.values() if tap in each.errors), key=lambda each: each.share(tap))


def divergence_of(results: Results, tap: str, found: Explanation, *, with_profile: bool = False) -> Divergence:
    worst, profile = _worst(results, tap), {}
    is_misshapen = tap in worst.misshapen
    if with_profile and not found.causes:
        ours = walk(worst.probe, worst.recorded, until=tap)[tap]
        profile = error_profile(worst.judged(tap, ours), ours)
    numbers = worst.errors[tap], worst.budgets[tap]
    ties = found.indistinguishable, found.split_by
    return Divergence(tap, *numbers, found.causes, *ties, worst.probe.name, profile, is_misshapen)


def _remaining(segment: Segment, known: Combination) -> Divergence:
    probe = max(segment.probes, key=lambda probe: segment.share(probe, known))
    result = segment.results[probe.name]
    ours = walk(probe, result.recorded, known, until=segment.tap)[segment.tap]
    actual = result.judged(segment.tap, ours)
    profile = error_profile(actual, ours)
    return Divergence(segment.tap, gap(actual, ours), segment.budget(probe), probe=probe.name, profile=profile)


def _reshaped(divergence: Divergence, explanations: Mapping[str, Explanation]) -> Divergence:
    for explanation in explanations.values() if divergence.is_misshapen else ():
        fault = _alone(explanation)
        if fault is not None and fault.reshapes == divergence.where and not explanation.remains:
            return dataclasses.replace(divergence, causes=explanation.causes)
    return divergence


def _exchanged(divergence: Divergence, explanations: Mapping[str, Explanation]) -> Divergence:
    """Replace the cause by a swap if two or three taps use each other's parameters."""
    fault = _alone(explanations.get(divergence.where))
    if not divergence.causes or fault is None or not (fault.taken_from and fault.exchange):
        return divergence
    source, ring = fault.taken_from(divergence.where), [divergence.where]
    while source not in ring:
        ring.append(source)
        further = _alone(explanations.get(source))
        if further is not None and (further.id, further.variant) == (fault.exchange.id, fault.exchange.variant):
            source = ring[0]  # the swap already explains the other tap
            break
        if further is None or further.taken_from is None or further.id != fault.id:
            return divergence
        source = further.taken_from(source)
    if source != ring[0]:
        return divergence
    name, says = fault.exchange.id, fault.exchange.description
    if len(ring) > 2:  # query, key and value
        name, says = "packed-order", "queries, keys and values are computed with each other's weights, in a cycle"
    cause = dataclasses.replace(divergence.causes[0], mistake=name, says=says)
    return dataclasses.replace(divergence, causes=(cause,))


def _alone(explanation: Explanation | None) -> Fault | None:
    return explanation.chosen[0].fault if explanation and len(explanation.chosen) == 1 else None


def _whole_model_fault(results: Results, faulty: list[str]) -> Combination:
    """Return the fault of the whole model that corrects the most segments: at least two, and at least half."""
    if len(faulty) < 2:
        return ()
    config = next(iter(results.values())).probe.config
    candidates = [hypothesis for hypothesis in whole_model(config) if hypothesis.fault.id != "low-precision"]
    best, _ = fewest_wrong(results, candidates, min(len(faulty) // 2, len(faulty) - 2))
    return () if best is None else (best,)
