"""Find the smallest set of faults with which the reference computes the port's logits. These faults are more reliable
than faults of single activations, whose matches with operations may be wrong."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Self

import numpy as np

from transparity_conformance.catalogue.fault import Hypothesis, groups
from transparity_conformance.diagnosis.locate import candidate_sites
from transparity_conformance.diagnosis.probe_result import Results, compare_segments, still_wrong
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.search.fitting import made_at
from transparity_conformance.diagnosis.search.search import Search
from transparity_conformance.diagnosis.segment import Combination, Segment, segment_of, where_it_acts
from transparity_conformance.diagnosis.thresholds import DEEPEST, PAIR
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.storage.on_disk import chosen as chosen_of

Taps = Mapping[str, Mapping[str, np.ndarray]]


class Answer:
    """A port's logits on every probe. `alone` has the results of a comparison of only the logits."""

    found: Collection[str] = ()
    """The taps that are matched with operations by value."""

    singles: Sequence[Combination] = ()
    """The single faults that reproduce the logits."""

    told: Combination = ()
    """The reported faults, which together reproduce the logits."""

    contradicts: Sequence[str] = ()
    """The taps that stay wrong with `told`, because their matches are wrong."""

    def __init__(self, alone: Results, clock: Clock, ranks: int = 1) -> None:
        self.alone, self.clock, self.ranks = alone, clock, ranks
        self.tried: set[frozenset[str]] = set()

    @classmethod
    def of(cls, probes: Mapping[str, Probe], actual: Taps, dtype: str, clock: Clock, ranks: int) -> Self:
        shown = {key: {"logits": actual[key]["logits"]} for key in probes if "logits" in actual.get(key, {})}
        finite = [key for key in shown if np.isfinite(probes[key].oracle.budget("logits", dtype))]
        return cls({key: compare_segments(probes[key], shown[key], dtype) for key in finite}, clock, ranks)

    @functools.cached_property
    def segment(self) -> Segment:
        return segment_of(self.alone, "logits", self.ranks)

    @property
    def is_large(self) -> bool:
        return any(each.probe.is_large for each in self.alone.values())

    @property
    def is_wrong(self) -> bool:
        return any(each.wrong for each in self.alone.values())

    @functools.cached_property
    def sites(self) -> list[str]:
        return candidate_sites(max(self.alone.values(), key=lambda each: each.share("logits")), "logits")

    @functools.cached_property
    def search(self) -> Search:
        return Search(self.segment, self.sites, (), self.clock)

    def single(self) -> Combination:
        """Find single faults that act at all possible taps and reproduce the logits; return the first."""
        self.singles = [] if self.is_large else self._beside(())
        return self.singles[0] if self.singles else ()

    def pairs(self) -> list[Combination]:
        return _complete(self.search, PAIR)

    def wrong_with(self, results: Results, faulty: Sequence[str], chosen: Combination) -> list[str]:
        """Return the taps that stay wrong with `chosen`, except taps that differ only in form."""
        in_form = {tap for each in results.values() for tap in each.wrong} - {*faulty}
        return [tap for tap in still_wrong(results, chosen) if tap not in in_form]

    def fewest_of(self, told: Combination, last: Combination) -> Combination:
        """Return the smallest subset of `told` that includes a fault from `last` and reproduces the logits, or ()."""
        kinds, new = by_id(told), {each.fault.id for each in last}
        sizes = [*range(1, min(len(kinds), DEEPEST) + 1), *[len(kinds)][: len(kinds) > DEEPEST]]
        every = [ids for size in sizes for ids in itertools.combinations(kinds, size) if new & {*ids}]
        with contextlib.suppress(OutOfTime):
            for ids in every:
                for chosen in self._widened([kinds[each] for each in ids]):
                    if not self.segment.is_near(self.search.screen, chosen):
                        break
                    if self.segment.vanishes(chosen):
                        return where_it_acts(self.segment, (), chosen)
        return ()

    def with_one_more(self, told: Combination, last: Combination) -> Combination:
        """Return faults from `last` or `told` that, with one new fault, reproduce the logits. First let the known
        faults act at all possible taps, because the missing fault may hide their effect at some taps. Then let them act
        only at the taps that leave the smallest difference."""
        kinds, new = by_id(told), frozenset(each.fault.id for each in last)
        with contextlib.suppress(OutOfTime):
            for these in [each for each in dict.fromkeys((new, frozenset(kinds))) if each not in self.tried]:
                self.tried.add(these)
                made = self._widened([kinds[each] for each in kinds if each in these])
                widest = max(made, key=lambda chosen: sum(len(each.sites) for each in chosen))
                for known in [widest, made[0]] if made[0] is not widest else [widest]:
                    if found := self._beside(known):
                        return self.fewest_of((*known, *found[0]), found[0])
        return ()

    def _widened(self, kinds: Sequence[Combination]) -> list[Combination]:
        made = [tuple(itertools.chain(*each)) for each in itertools.product(*map(self._widths, kinds))]
        return self.search.by_rest(self.search.screen, made)

    def _widths(self, found: Combination) -> list[Combination]:
        """Return the fault at the taps where it was found, and at each larger group of taps, such as all layers."""
        fault, sites = found[0].fault, {site for each in found for site in each.sites}
        alike = {(each.fault.id, each.fault.variant) for each in found}
        possible = (site for site in self.sites if made_at(self.search.screen.config, fault, site))
        wide = groups(possible) if len(alike) == 1 else []
        return [found, *((Hypothesis(fault, each),) for each in wide if sites < {*each})]

    def _beside(self, known: Combination) -> list[Combination]:
        """Return single faults at all possible taps that, together with `known`, reproduce the logits."""
        clock = self.clock if known else self.clock.part()
        return _complete(Search(self.segment, self.sites, known, clock), 1, only_wide=True)

    def follows(self, results: Results, chosen: Combination, given: Sequence[str], end: str = "logits") -> bool:
        having = {
            each.probe.name: dataclasses.replace(
                each,
                recorded=chosen_of(each.recorded, [*given, end]),
                budgets={end: each.probe.oracle.budget(end, each.dtype)},
            )
            for key, each in results.items()
            if key in self.alone and {*given, end} <= each.recorded.keys()
        }
        return bool(having) and Segment(end, having, self.ranks).vanishes(chosen)


def _complete(search: Search, deepest: int, *, only_wide: bool = False) -> list[Combination]:
    with contextlib.suppress(OutOfTime):
        found, remains = search.run([], deepest, only_wide=only_wide)
        return [] if remains else found
    return []


def by_id(told: Combination) -> dict[str, Combination]:
    return {each.fault.id: tuple(other for other in told if other.fault.id == each.fault.id) for each in told}
