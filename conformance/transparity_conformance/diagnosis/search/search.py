"""The search for the faults that make a difference vanish: single ones, those with a number, and pairs."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.search.fitting import Fittable, by_size, fit, fittables, fitted, widest
from transparity_conformance.diagnosis.search.pairs import Effects
from transparity_conformance.diagnosis.segment import Combination, Segment, rms
from transparity_conformance.oracle.probes import Probe

BEAM = 3
"""Partners by added effects are searched for this many of the best single faults."""

WIDE = 8
"""Pairs of faults that are each made wherever possible are searched among this many of the best: one wrong line of code
is wrong in every layer."""

NUMBERS = 4
"""Faults with a number are fitted beside this many of them."""

ROUNDS = 4
"""Two numbers are fitted by turns this many times."""

WALKS = 1500
"""The budget of walks for partners among all candidates, at least one sweep; faults that explain a probe come first."""

DEEPEST, DEEP = 3, 8
"""So many faults in one segment are put together, from so many of the best combinations of one fewer."""

COMMON = ("attention-scale", "causal-missing", "causal-diagonal", "padding-ignored", "weight-transpose", "bias-dropped")
"""Ids that are preferred among faults that explain equally well."""


class Search:
    """Search `candidates` for those that explain the difference at `segment`.

    Args:
        known: Faults that are applied already.
        screen: The probe on which candidates are ranked.
        clock: The time that is left.

    Every method raises `OutOfTime` if it runs out.
    """

    def __init__(
        self, segment: Segment, known: Combination, screen: Probe, candidates: list[Hypothesis], clock: Clock
    ) -> None:
        self.segment, self.known, self.screen, self.clock = segment, known, screen, clock
        self.candidates = candidates

    def singles(self) -> list[Combination]:
        """Single faults that explain every probe."""
        return self._survivors(self.screen, self._ranked)

    def fitted(self, config: TransformerConfig, sites: list[str]) -> tuple[list[Combination], bool]:
        """Single faults with a fitted number, and whether something remains.

        A number may explain every probe of the size that it was fitted on, but not those of another size.
        """
        made = list(fitted(config, sites, lambda hypothesis: self._left(self.screen, (hypothesis,))))
        ranked = self._by_rest(self.screen, [(hypothesis,) for _, hypothesis in made])
        found, remains = self._of_every_size(self._survivors(self.screen, ranked, self._same_size))
        if remains and found and (of_sizes := self._fitted_to_sizes(made, found)):
            return of_sizes, False
        return found, remains

    def _fitted_to_sizes(self, made: list[tuple[Fittable, Hypothesis]], found: list[Combination]) -> list[Combination]:
        """Faults of `found` with a number of their own for every size of model that is probed."""
        of_sizes: list[Combination] = []
        kept = {id(hypothesis) for (hypothesis,) in found}
        others = {probe.config: probe for probe in self.segment.probes if probe.config != self.screen.config}
        for fittable, hypothesis in made:
            if id(hypothesis) not in kept:
                continue
            sizes = {self.screen.config: hypothesis}
            for config, probe in others.items():
                again = self._refit(fittable, config, probe)
                if again is not None:
                    sizes[config] = again
            combined = (by_size(sizes),)
            if self.segment.vanishes((*self.known, *combined)):
                of_sizes.append(combined)
        return of_sizes

    def _refit(self, fittable: Fittable, config: TransformerConfig, probe: Probe) -> Hypothesis | None:
        """The fault with the number that fits a model of another size."""
        numeric, sites = fittable
        same = [again for again in fittables(config, list(sites)) if again[1] == sites]
        kind = numeric.make(1.0).id
        again = next((each for each in same if each[0].make(1.0).id == kind), None)
        return fit(again, lambda hypothesis: self._left(probe, (hypothesis,))) if again else None

    def pairs(self) -> tuple[list[Combination], bool]:
        """Pairs of faults that explain every probe, and whether something remains."""
        likely = self._by_rest(self.screen, self._pairs(self._effects.likely_pairs()))
        if found := self._survivors(self.screen, likely):
            return found, False
        of_one_size, remains = self._wide_pairs()
        if of_one_size and not remains:
            return of_one_size, False
        best = [*(likely[0] if likely else ()), *self._distinct]
        if found := self._swept_pairs(best) or self._added_pairs(best):
            return found, False
        return of_one_size, True

    def several(self, config: TransformerConfig, sites: list[str], likely: Sequence[Combination]) -> list[Combination]:
        """Two or three faults in one segment of a port that shows its activations: fewest first, numbers fitted.

        Args:
            config: The configuration of the screen.
            sites: The taps at which they may be made.
            likely: Combinations that explain other segments of the same kind.
        """
        best: list[Combination] = self._ranked
        for _ in range(DEEPEST - 1 if self.candidates else 0):
            widest = [*likely, *best][: max(DEEP, WALKS // len(self.candidates) // DEEPEST)]
            more = [(*chosen, one) for chosen in widest for one in self.candidates if one not in chosen]
            best = self._by_rest(self.screen, more)
            if found := self._survivors(self.screen, best):
                return found
            numeric = list(fittables(config, sites))
            made = [(*chosen, one) for chosen in widest[:DEEP] for each in numeric if (one := self._fit(each, chosen))]
            if found := self._survivors(self.screen, self._by_rest(self.screen, made)):
                return found
            best = self._by_rest(self.screen, [*made, *best[:DEEP]])
        return []

    def _wide_pairs(self) -> tuple[list[Combination], bool]:
        """Pairs of faults that are each made wherever possible."""
        of_one_size: list[Combination] = []
        for first in self._wide[:WIDE]:
            found, remains = self._of_every_size(self._with(first, self._wide, self._same_size))
            if found and not remains:
                return found, False
            of_one_size = of_one_size or found
        return of_one_size, True

    def _swept_pairs(self, best: list[Hypothesis]) -> list[Combination]:
        """Pairs of a promising fault and any other."""
        sweeps = max(1, WALKS // len(self.candidates))
        wholly = [first for (first,), _ in self._explaining[:sweeps]]
        for first in wholly + [first for first in best if first not in wholly][: sweeps - len(wholly)]:
            if found := self._with(first, self.candidates, self.segment.probes):
                return found
        return []

    def _added_pairs(self, best: list[Hypothesis]) -> list[Combination]:
        """Pairs of one of the best faults and a partner whose effect adds up to the rest."""
        for first in best[:BEAM]:
            index = self.candidates.index(first)
            pairs = self._pairs([(index, second) for second in self._effects.likely_partners(index)])
            if found := self._survivors(self.screen, self._by_rest(self.screen, pairs)):
                return found
        return []

    def pairs_with_a_number(self, config: TransformerConfig, sites: list[str]) -> tuple[list[Combination], bool]:
        """Pairs of faults, at least one with a number, each made wherever possible; and whether something remains."""
        if not self.segment.is_whole_model:
            return [], False
        numeric = widest(config, sites)
        alone = [(each, number) for each in numeric if (number := self._fit(each, ())) is not None]
        alone = sorted(alone, key=lambda item: self._left(self.screen, item[1:]))[: NUMBERS // 2]
        partners = self._wide[:NUMBERS]
        for _, number in alone:
            pairs = self._by_rest(self.screen, [(number, second) for second in self._wide])
            partners += [second for _, second in pairs[: NUMBERS // 2]]
        found: list[Combination] = []
        for first in {id(partner): partner for partner in partners}.values():
            found += [(first, second) for each in numeric if (second := self._fit(each, (first,))) is not None]
        for each, first in alone:
            others = [other for other in numeric if other is not each]
            seconds = [(other, second) for other in others if (second := self._fit(other, (first,))) is not None]
            if seconds:
                other, _ = min(seconds, key=lambda item: self._left(self.screen, (first, item[1])))
                found += self._by_turns(each, other, first)
        ranked = self._by_rest(self.screen, found)
        return self._of_every_size(self._survivors(self.screen, ranked, self._same_size))

    def _fit(self, fittable: Fittable, partners: Combination) -> Hypothesis | None:
        probe = self._most_telling(partners, self._same_size)
        return fit(fittable, lambda hypothesis: self._left(probe, (*partners, hypothesis)))

    def _by_turns(self, one: Fittable, other: Fittable, first: Hypothesis) -> list[Combination]:
        """Fit two numbers by turns, each with the other applied."""
        for _ in range(ROUNDS):
            second = self._fit(other, (first,))
            again = self._fit(one, (second,)) if second else None
            if second is None or again is None:
                return []
            first = again
        return [(first, second)] if second else []

    def partial(self) -> list[Combination]:
        """Single faults that explain several probes, but not all: those that explain most, the likeliest first.

        A fault that explains one probe alone is too weak a guess.
        """
        most = max((count for _, count in self._explaining), default=0)
        return [chosen for chosen, count in self._explaining if count == most > 1]

    @functools.cached_property
    def _explaining(self) -> list[tuple[Combination, int]]:
        """Single faults that explain some probe, and how many of the disagreeing ones they explain: the most first.

        The shortest probe is tried, too: fewest faults show on it, so one of several may be alone there.
        """
        shortest = min(self.segment.probes, key=lambda probe: sum(tokens.size for tokens in probe.inputs.values()))
        off = [probe for probe in self.segment.probes if self._share(probe, ()) > 1]
        found = self._survivors(self.screen, self._ranked, [self.screen])
        if shortest in off and shortest is not self.screen:
            alone: list[Combination] = [(hypothesis,) for hypothesis in self.candidates]
            found += self._survivors(shortest, self._by_rest(shortest, alone), [shortest])
        explained = [(chosen, sum(self._share(probe, chosen) <= 1 for probe in off)) for chosen in found]
        return sorted(explained, key=lambda item: -item[1])

    @functools.cached_property
    def _ranked(self) -> list[Combination]:
        scores = [rms(left) for left in self._lefts()]
        return [(self.candidates[index],) for index in np.argsort(scores, kind="stable")]

    @functools.cached_property
    def _wide(self) -> list[Hypothesis]:
        """Faults that are made wherever possible, the best first."""
        widest: dict[tuple[str, str], Hypothesis] = {}
        for hypothesis in self.candidates:
            widest.setdefault((hypothesis.fault.id, hypothesis.fault.variant), hypothesis)
        chosen = {id(hypothesis) for hypothesis in widest.values()}
        return [hypothesis for (hypothesis,) in self._ranked if id(hypothesis) in chosen]

    @functools.cached_property
    def _same_size(self) -> list[Probe]:
        """The probes of the screen's size."""
        return [probe for probe in self.segment.probes if probe.config == self.screen.config]

    def _most_telling(self, chosen: Combination, probes: Sequence[Probe]) -> Probe:
        """The probe with the largest remaining difference."""
        return max(probes, key=lambda probe: self._share(probe, chosen)) if chosen else self.screen

    def _with(self, first: Hypothesis, seconds: Sequence[Hypothesis], probes: Sequence[Probe]) -> list[Combination]:
        """Pairs of `first` and one of `seconds` that explain `probes`."""
        probe = self._most_telling((first,), probes)
        pairs: list[Combination] = [(first, second) for second in seconds if second != first]
        return self._survivors(probe, self._by_rest(probe, pairs), probes)

    def _of_every_size(self, found: list[Combination]) -> tuple[list[Combination], bool]:
        """Keep those of `found` that explain probes of every size; if there are none, return all and True."""
        everywhere = [chosen for chosen in found if self.segment.vanishes((*self.known, *chosen))]
        return everywhere or found, not everywhere

    @functools.cached_property
    def _effects(self) -> Effects:
        return Effects(self.segment.left(self.screen, self.known))

    @functools.cached_property
    def _distinct(self) -> list[Hypothesis]:
        """The best single faults, one of each effect."""
        order = {id(h): rank for rank, (h,) in enumerate(self._ranked)}
        return sorted((self.candidates[i] for i in self._effects.distinct), key=lambda h: order[id(h)])

    def _lefts(self) -> Iterator[np.ndarray]:
        for hypothesis in self.clock.each(self.candidates):
            chosen = (*self.known, hypothesis)
            left = self.segment.left(self.screen, chosen)
            self.segment.keep(self.screen, chosen, left)
            self._effects.add(left)
            yield left

    def _pairs(self, indices: Sequence[tuple[int, int]]) -> list[Combination]:
        return [(self.candidates[one], self.candidates[other]) for one, other in indices]

    def _left(self, probe: Probe, chosen: Combination) -> float:
        self.clock.check()
        return self.segment.rms(probe, (*self.known, *chosen))

    def _share(self, probe: Probe, chosen: Combination) -> float:
        self.clock.check()
        return self.segment.share(probe, (*self.known, *chosen))

    def _by_rest(self, probe: Probe, combinations: Sequence[Combination]) -> list[Combination]:
        rests = [self._left(probe, chosen) for chosen in self.clock.each(combinations)]
        return [combinations[index] for index in np.argsort(rests, kind="stable")]

    def _survivors(
        self, screen: Probe, ranked: Sequence[Combination], probes: Sequence[Probe] | None = None
    ) -> list[Combination]:
        """Those that make the difference vanish on all `probes` (all of the segment's by default).

        Args:
            ranked: The candidates in order of the difference that is left on `screen`.
        """
        segment = self.segment
        everywhere = segment.probes if probes is None else probes
        found, before = [], self._left(screen, ())
        for chosen in ranked:
            combined = (*self.known, *chosen)
            # what leaves more than half of the difference is no explanation, whatever its own budget
            if self._left(screen, chosen) > before / 2 or not segment.is_near(screen, combined):
                break
            if segment.share(screen, combined) <= 1 and segment.vanishes(combined, everywhere):
                found.append(chosen)
        return sorted(found, key=lambda chosen: (len(chosen), _preference(chosen[0])))


def _preference(hypothesis: Hypothesis) -> tuple[bool, int, int]:
    """Prefer faults of the ranks, common ones, then those at more sites, among faults that explain equally well."""
    identity, of_ranks = hypothesis.fault.id, hypothesis.fault.of_ranks
    return (not of_ranks, COMMON.index(identity) if identity in COMMON else len(COMMON), -len(hypothesis.sites))
