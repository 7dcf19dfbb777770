"""Causes of the whole answer: faults with which the reference, run by itself, gives the port's logits on every probe.

They are the condition for every cause that is told. Activations that were found by value may be others than those that
they were taken for, so the fewest faults that give the answer are preferred to those that explain each activation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Self

import numpy as np

from transparity_conformance.catalogue import widest
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.locate import candidate_sites
from transparity_conformance.diagnosis.probe_result import Results, compare_segments, still_wrong
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.search.fitting import fittables
from transparity_conformance.diagnosis.search.search import DEEPEST, PAIR, Search
from transparity_conformance.diagnosis.segment import Combination, Segment, segment_of
from transparity_conformance.oracle.probes import Probe

Taps = Mapping[str, Mapping[str, np.ndarray]]
"""The activations of a port, by probe and tap."""


class Answer:
    """The logits of a port on every probe, whatever else it shows.

    Args:
        alone: the logits on every probe, and nothing else.
        dtype, clock, ranks: as for every search.
    """

    found: Collection[str] = ()
    """The taps that were found among a port's operations by value, and that it does not show by itself."""

    singles: Sequence[Combination] = ()
    """The single faults that give the answer, as far as they were sought."""

    def __init__(self, alone: Results, dtype: str, clock: Clock, ranks: int = 1) -> None:
        self.alone, self.dtype, self.clock, self.ranks = alone, dtype, clock, ranks
        self.tried: set[frozenset[str]] = set()

    @classmethod
    def of(
        cls, probes: Mapping[str, Probe], actual: Mapping[str, Arrays], dtype: str, clock: Clock, ranks: int
    ) -> Self:
        """The answer of a port that was run on `probes`."""
        shown = {key: {"logits": actual[key]["logits"]} for key in probes if "logits" in actual.get(key, {})}
        finite = [key for key in shown if np.isfinite(probes[key].oracle.budget("logits", dtype))]
        return cls({key: compare_segments(probes[key], shown[key], dtype) for key in finite}, dtype, clock, ranks)

    @functools.cached_property
    def segment(self) -> Segment:
        """The whole model as one segment."""
        return segment_of(self.alone, "logits", self.dtype, self.ranks)

    @property
    def is_large(self) -> bool:
        """Return whether a walk of the whole model takes long."""
        return any(each.probe.is_large for each in self.alone.values())

    @property
    def is_wrong(self) -> bool:
        """Return whether the logits are wrong on some probe."""
        return any(each.wrong for each in self.alone.values())

    @functools.cached_property
    def sites(self) -> list[str]:
        """All taps at which a fault may have been made."""
        return candidate_sites(max(self.alone.values(), key=lambda each: each.share("logits")), "logits")

    @functools.cached_property
    def search(self) -> Search:
        return Search.at(self.segment, self.sites, (), self.clock)

    def single(self) -> Combination:
        """Find the single faults that give the answer, made wherever possible, and return the first; of a large model,
        where each takes long, none."""
        search = Search.at(self.segment, self.sites, (), self.clock.part(), only_wide=True)
        self.singles = [] if self.is_large else _result(search, 1)
        return self.singles[0] if self.singles else ()

    def pairs(self) -> list[Combination]:
        """Find the combinations of at most two faults that give the answer, the preferred first."""
        return _result(self.search, PAIR)

    def wrong_with(self, results: Results, faulty: Sequence[str], chosen: Combination) -> list[str]:
        """List the activations of a port that are wrong with these faults in the reference; without them those that are
        not `faulty` are another form of the right ones."""
        in_form = {tap for each in results.values() for tap in each.wrong} - {*faulty}
        return [tap for tap in still_wrong(results, chosen, self.dtype) if tap not in in_form]

    def fewest_of(self, told: Combination, last: Combination) -> Combination:
        """The fewest of the faults of several places that give the answer, made there or wherever possible, with one of
        the `last` place among them, or these and one fault more; none if even all of them do not."""
        kinds = {each.fault.id: [other for other in told if other.fault.id == each.fault.id] for each in told}
        new = {each.fault.id for each in last}
        sizes = [*range(1, min(len(kinds), DEEPEST) + 1), *[len(kinds)][: len(kinds) > DEEPEST]]
        every = (ids for size in sizes for ids in itertools.combinations(kinds, size) if new & {*ids})
        with contextlib.suppress(OutOfTime):
            for ids in every:
                for chosen in self._as_wide([kinds[each] for each in ids]):
                    self.clock.walk()
                    if self.segment.vanishes(chosen):
                        return chosen
        for these in {frozenset(new), frozenset(kinds)} - self.tried:
            self.tried.add(these)
            if chosen := self._with_one_more([kinds[each] for each in kinds if each in these]):
                return chosen
        return ()

    def _with_one_more(self, kinds: Sequence[Sequence[Hypothesis]]) -> Combination:
        """Faults that were found, wherever they can be made, with one more that gives the answer; none if none does."""
        *_, wide = self._as_wide(kinds)
        found = _result(Search.at(self.segment, self.sites, wide, self.clock.part(), only_wide=True), 1)
        return (*wide, *found[0]) if found else ()

    def _as_wide(self, chosen: Sequence[Sequence[Hypothesis]]) -> Iterator[Combination]:
        """Faults where they were found, and each wherever it can be made."""
        yield tuple(each for kind in chosen for each in kind)
        yield tuple(self._widest(kind[0]) for kind in chosen)

    def _widest(self, hypothesis: Hypothesis) -> Hypothesis:
        fault, config = hypothesis.fault, self.search.screen.config
        same = [each for each in self._everywhere if (each.fault.id, each.fault.variant) == (fault.id, fault.variant)]
        made = [(each.make(1.0).id, sites) for each, sites in fittables(config, self.sites) if fault.value is not None]
        numbers = [Hypothesis(fault, sites) for name, sites in made if name == fault.id]
        return max([hypothesis, *same, *numbers], key=lambda each: len(each.sites))

    @functools.cached_property
    def _everywhere(self) -> list[Hypothesis]:
        return widest(self.search.candidates)

    def follows(self, results: Results, chosen: Combination, given: Sequence[str]) -> bool:
        """Return whether the answer follows from faults and from the port's own values at the `given` taps, on every
        probe that has these."""
        having = [each for key, each in results.items() if key in self.alone and {*given} <= each.recorded.keys()]
        recorded = {each.probe.name: {tap: each.recorded[tap] for tap in [*given, "logits"]} for each in having}
        segment = dataclasses.replace(self.segment, probes=[each.probe for each in having], recorded=recorded)
        return bool(having) and segment.vanishes(chosen)


def _result(search: Search, most: int) -> list[Combination]:
    """The combinations of at most `most` faults with which nothing remains."""
    with contextlib.suppress(OutOfTime):
        found, remains = search.run([], most)
        return [] if remains else found
    return []
