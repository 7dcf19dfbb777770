"""The search for what makes a disagreement vanish: single faults, those with a number, and pairs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.diagnosis.fault import Hypothesis
from transparity_conformance.diagnosis.fitting import Family, fit, fitted, widest
from transparity_conformance.diagnosis.pairs import Effects
from transparity_conformance.diagnosis.segment import Combination, Place, rms
from transparity_conformance.oracle.probes import Probe

BEAM = 3
"""For so many of the best single faults a second is looked for, among those that add up with it."""

WIDE = 8
"""Beside so many of the best faults that are made wherever they can be, all such are tried: of what is one line of
code, every layer is wrong."""

NUMBERS = 4
"""Beside so many of them those with a number are fitted."""

ROUNDS = 4
"""Two numbers are fitted beside each other so many times."""

WALKS = 1500
"""So many are taken, and at least one for each, to look for a second among all: first beside those that explain a probe
wholly."""

COMMON = ("attention-scale", "causal-missing", "causal-diagonal", "padding-ignored", "weight-transpose", "bias-dropped")
"""Named first where they explain as well as another."""


class Search:
    """What of `candidates` explains the disagreement at `place`, with `known` faults already put in; `screen` is the
    probe on which they are ranked."""

    def __init__(self, place: Place, known: Combination, screen: Probe, candidates: list[Hypothesis]) -> None:
        self.place, self.known, self.screen = place, known, screen
        self.candidates = candidates

    def singles(self) -> list[Combination]:
        """One fault that explains every probe."""
        return self._survivors(self.screen, self._ranked)

    def fitted(self, config: TransformerConfig, sites: list[str]) -> tuple[list[Combination], bool]:
        """One fault with a number in it, and whether something remains: a number may explain every probe of the size
        that it was fitted in, and not those of another."""
        found = [(h,) for h in fitted(config, sites, lambda hypothesis: self._left(self.screen, (hypothesis,)))]
        return self._of_every_size(self._survivors(self.screen, self._by_what_is_left(self.screen, found), self._sized))

    def pairs(self) -> tuple[list[Combination], bool]:
        """Two faults that explain every probe together, and whether something remains."""
        likely = self._by_what_is_left(self.screen, self._pairs(self._effects.likely_pairs()))
        if (found := self._survivors(self.screen, likely)) or not self.place.is_all_there_is:
            return found, False  # where a port shows its activations, two faults are seldom made in one segment
        of_one_size: list[Combination] = []
        for first in self._wide[:WIDE]:
            found, remains = self._of_every_size(self._beside(first, self._wide, self._sized))
            if found and not remains:
                return found, False
            of_one_size = of_one_size or found
        sweeps = max(1, WALKS // len(self.candidates))
        wholly = [first for (first,), _ in self._explaining[:sweeps]]
        best = [*(likely[0] if likely else ()), *self._distinct]
        for first in wholly + [first for first in best if first not in wholly][: sweeps - len(wholly)]:
            if found := self._beside(first, self.candidates, self.place.probes):
                return found, False
        for first in best[:BEAM]:
            index = self.candidates.index(first)
            beside = self._pairs([(index, second) for second in self._effects.likely_beside(index)])
            if found := self._survivors(self.screen, self._by_what_is_left(self.screen, beside)):
                return found, False
        return of_one_size, True

    def pairs_with_a_number(self, config: TransformerConfig, sites: list[str]) -> tuple[list[Combination], bool]:
        """Two faults of which one has a number in it, or both, each made wherever it can be, and whether something
        remains."""
        if not self.place.is_all_there_is:
            return [], False
        families = widest(config, sites)
        alone = [(family, number) for family in families if (number := self._fit(family, ())) is not None]
        alone = sorted(alone, key=lambda item: self._left(self.screen, item[1:]))[: NUMBERS // 2]
        partners = self._wide[:NUMBERS]
        for _, number in alone:
            beside = self._by_what_is_left(self.screen, [(number, second) for second in self._wide])
            partners += [second for _, second in beside[: NUMBERS // 2]]
        found: list[Combination] = []
        for first in {id(partner): partner for partner in partners}.values():
            found += [(first, second) for family in families if (second := self._fit(family, (first,))) is not None]
        for family, first in alone:
            others = [other for other in families if other is not family]
            seconds = [(other, second) for other in others if (second := self._fit(other, (first,))) is not None]
            if seconds:
                other, _ = min(seconds, key=lambda item: self._left(self.screen, (first, item[1])))
                found += self._by_turns(family, other, first)
        ranked = self._by_what_is_left(self.screen, found)
        return self._of_every_size(self._survivors(self.screen, ranked, self._sized))

    def _fit(self, family: Family, beside: Combination) -> Hypothesis | None:
        hidden = self._hiding_least(beside, self._sized)
        return fit(family, lambda hypothesis: self._left(hidden, (*beside, hypothesis)))

    def _by_turns(self, one: Family, other: Family, first: Hypothesis) -> list[Combination]:
        """Two numbers, each fitted beside the other until they stay."""
        for _ in range(ROUNDS):
            second = self._fit(other, (first,))
            again = self._fit(one, (second,)) if second else None
            if second is None or again is None:
                return []
            first = again
        return [(first, second)] if second else []

    def partial(self) -> list[Combination]:
        """One fault that explains several probes wholly, but not all: those that explain most, the likeliest first;
        of one probe alone it would say too little."""
        most = max((count for _, count in self._explaining), default=0)
        return [chosen for chosen, count in self._explaining if count == most > 1]

    @functools.cached_property
    def _explaining(self) -> list[tuple[Combination, int]]:
        """Single faults that explain some probe wholly, and how many of those that are off: the most first. On the
        shortest probe fewest faults show, and one may stand alone."""
        shortest = min(self.place.probes, key=lambda probe: sum(tokens.size for tokens in probe.inputs.values()))
        off = [probe for probe in self.place.probes if self._share(probe, ()) > 1]
        found = self._survivors(self.screen, self._ranked, [self.screen])
        if shortest in off and shortest is not self.screen:
            alone: list[Combination] = [(hypothesis,) for hypothesis in self.candidates]
            found += self._survivors(shortest, self._by_what_is_left(shortest, alone), [shortest])
        explained = [(chosen, sum(self._share(probe, chosen) <= 1 for probe in off)) for chosen in found]
        return sorted(explained, key=lambda item: -item[1])

    @functools.cached_property
    def _ranked(self) -> list[Combination]:
        scores = [rms(left) for left in self._lefts()]
        return [(self.candidates[index],) for index in np.argsort(scores, kind="stable")]

    @functools.cached_property
    def _wide(self) -> list[Hypothesis]:
        """Faults that are made wherever they can be, the best first."""
        widest: dict[tuple[str, str], Hypothesis] = {}
        for hypothesis in self.candidates:
            widest.setdefault((hypothesis.fault.id, hypothesis.fault.variant), hypothesis)
        chosen = {id(hypothesis) for hypothesis in widest.values()}
        return [hypothesis for (hypothesis,) in self._ranked if id(hypothesis) in chosen]

    @functools.cached_property
    def _sized(self) -> list[Probe]:
        """The probes of one size."""
        return [probe for probe in self.place.probes if probe.config == self.screen.config]

    def _hiding_least(self, chosen: Combination, probes: Sequence[Probe]) -> Probe:
        """The probe that shows most of what is left."""
        return max(probes, key=lambda probe: self._share(probe, chosen)) if chosen else self.screen

    def _beside(self, first: Hypothesis, seconds: Sequence[Hypothesis], probes: Sequence[Probe]) -> list[Combination]:
        """Pairs of `first` and another that explain `probes`."""
        hidden = self._hiding_least((first,), probes)
        pairs: list[Combination] = [(first, second) for second in seconds if second != first]
        return self._survivors(hidden, self._by_what_is_left(hidden, pairs), probes)

    def _of_every_size(self, found: list[Combination]) -> tuple[list[Combination], bool]:
        """Those that explain probes of every size, and no: nothing remains; if there are none, those `found` in one,
        and yes."""
        everywhere = [chosen for chosen in found if self.place.vanishes((*self.known, *chosen))]
        return everywhere or found, not everywhere

    @functools.cached_property
    def _effects(self) -> Effects:
        return Effects(self.place.left(self.screen, self.known))

    @functools.cached_property
    def _distinct(self) -> list[Hypothesis]:
        """The best single faults, without those that do the same."""
        order = {id(h): rank for rank, (h,) in enumerate(self._ranked)}
        return sorted((self.candidates[i] for i in self._effects.distinct), key=lambda h: order[id(h)])

    def _lefts(self) -> Iterator[np.ndarray]:
        for hypothesis in self.candidates:
            left = self.place.left(self.screen, (*self.known, hypothesis))
            self._effects.add(left)
            yield left

    def _pairs(self, indices: Sequence[tuple[int, int]]) -> list[Combination]:
        return [(self.candidates[one], self.candidates[other]) for one, other in indices]

    def _left(self, probe: Probe, chosen: Combination) -> float:
        return self.place.rms(probe, (*self.known, *chosen))

    def _share(self, probe: Probe, chosen: Combination) -> float:
        return self.place.share(probe, (*self.known, *chosen))

    def _by_what_is_left(self, probe: Probe, combinations: Sequence[Combination]) -> list[Combination]:
        return sorted(combinations, key=lambda chosen: self._left(probe, chosen))

    def _survivors(
        self, screen: Probe, ranked: Sequence[Combination], probes: Sequence[Probe] | None = None
    ) -> list[Combination]:
        """Those that make the disagreement vanish on all `probes`, the catalogue's order among equals: `ranked` is by
        what is left on `screen`."""
        place = self.place if probes is None else dataclasses.replace(self.place, probes=probes)
        found = []
        for chosen in ranked:
            combined = (*self.known, *chosen)
            if not place.is_near(screen, combined):
                break
            if place.share(screen, combined) <= 1 and place.vanishes(combined):
                found.append(chosen)
        return sorted(found, key=lambda chosen: (len(chosen), _preference(chosen[0])))


def _preference(hypothesis: Hypothesis) -> tuple[int, int]:
    """Among what explains equally well: what people do more often, and what is made in one place of the code."""
    identity = hypothesis.fault.id
    return (COMMON.index(identity) if identity in COMMON else len(COMMON), -len(hypothesis.sites))
