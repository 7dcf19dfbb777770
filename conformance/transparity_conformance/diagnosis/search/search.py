"""A beam search for faults that explain the difference at a segment on every probe."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from transparity_conformance.catalogue import hypotheses, whole_model, widest
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.search.clock import STAGES, Clock, OutOfTime
from transparity_conformance.diagnosis.search.fitting import Fittable, by_size, fit, fittables, of_each_kind
from transparity_conformance.diagnosis.segment import Combination, Segment, rms
from transparity_conformance.diagnosis.thresholds import BEAM, DEEPEST, NO_EXPLANATION, PAIR, WALKS
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.storage.mapped import BLOCK

COMMON = (
    *("attention-scale", "causal-missing", "causal-diagonal", "padding-ignored", "mask-wholly-hidden-row"),
    *("weight-transpose", "bias-dropped"),
)
"""Faults that the search prefers among equally good ones."""

Round = tuple[Probe, list[Combination]]


class Effects:
    """The difference at sampled elements: `before` without a fault, `left[i]` with fault `i`. Two faults leave about
    `left[i] + left[j] − before`."""

    def __init__(self, before: np.ndarray, faults: int) -> None:
        self.shape = before.shape
        self.drawn = np.random.default_rng(0).permutation(before.size)[: BLOCK // max(faults, 1)]
        self.before = before.ravel()[self.drawn]
        self.left: list[np.ndarray] = []

    def add(self, left: np.ndarray) -> None:
        self.left.append(left.ravel()[self.drawn] if left.shape == self.shape else np.full(self.before.shape, np.inf))

    @functools.cached_property
    def distinct(self) -> list[int]:
        """The indices of faults with finite effects; if several faults have equal effects, only the first of these
        faults."""
        first = {left.tobytes(): index for index, left in reversed(list(enumerate(self.left)))}
        return sorted(index for index in first.values() if np.isfinite(self.left[index]).all())

    def likely(self, size: int, among: Sequence[int], count: int) -> list[list[int]]:
        """Return the sets of `size` faults whose sum of effects leaves the smallest difference, best first."""
        effects = np.stack([self.left[index] for index in among] or [self.before]) - self.before
        products = effects @ effects.T
        alone = np.diag(products) + 2 * effects @ self.before
        pairs = 2 * products + alone[:, None] + alone
        pairs[np.tril_indices(len(pairs))] = np.inf
        rests, sets = [np.zeros(0)], [np.zeros((0, size), int)]
        for first in itertools.combinations(range(len(among)), size - PAIR):
            start = max(first, default=-1) + 1
            together = 2 * products[[*first], start:].sum(0)
            rest = pairs[start:, start:] + together[:, None] + together + alone[[*first]].sum()
            best = np.argsort(rest, axis=None)[: min(count, len(rest) * (len(rest) - 1) // 2)]
            rests.append(rest.ravel()[best])
            last = np.stack(np.unravel_index(best, rest.shape), 1) + start
            sets.append(np.hstack([np.full((len(best), len(first)), first, int), last]))
        order = np.argsort(np.concatenate(rests), kind="stable")[:count]
        return [[among[place] for place in each] for each in np.concatenate(sets)[order]]


class Search:
    """A search for faults at `sites`, in addition to `known`, that explain `segment`; may raise `OutOfTime`."""

    def __init__(self, segment: Segment, sites: list[str], known: Combination, clock: Clock) -> None:
        self.segment, self.sites, self.known, self.clock = segment, sites, known, clock
        self.screen = screen_of(segment, known)
        """The probe that ranks candidates."""
        self.candidates = hypotheses(self.screen.config, sites, segment.ranks)
        if segment.tap == "logits":
            self.candidates += whole_model(self.screen.config)
        self.fitted: dict[int, tuple[Hypothesis, Fittable]] = {}
        self.fittables = list(fittables(self.screen.config, sites))
        self._fits: dict[tuple[int, ...], Hypothesis | None] = {}

    def run(
        self, likely: Sequence[Combination], deepest: int, *, only_wide: bool = False
    ) -> tuple[list[Combination], bool]:
        """Return combinations of as few faults as possible, and whether a difference remains on some probes. First
        extend the `likely` combinations, which explain similar segments. With `only_wide`, each fault acts at all
        possible taps."""
        best: list[Combination] = [()]
        of_one_size: list[Combination] = []
        for depth in range(deepest):
            rounds: list[list[Combination]] = []
            survivors: list[Combination] = []
            for probe, ranked in self._wide_rounds() if only_wide else self._rounds(depth, best, likely):
                survivors = self._survivors(probe, ranked, self._same_size)
                if found := [each for each in survivors if self.segment.vanishes((*self.known, *each))]:
                    return sorted(map(self._needed, found), key=len), False
                if not depth and (found := self._of_sizes(survivors)):
                    return found, False
                if survivors and depth and self.segment.is_whole_model:
                    of_one_size = survivors
                rounds.append(ranked)
            if survivors and not depth:
                return survivors, True
            if depth + 1 == deepest or of_one_size:
                break
            if depth and self.segment.is_whole_model:
                continue
            *_, rows, numbers = rounds
            if self.segment.is_whole_model:
                best = [*numbers[: BEAM // 4], *((one,) for one in self._wide)]
            else:
                best = self.by_rest(self.screen, [*numbers, *rows[: self._width]])
        return of_one_size, True

    def _needed(self, chosen: Combination) -> Combination:
        parts = (part for size in range(1, len(chosen)) for part in itertools.combinations(chosen, size))
        return next((part for part in parts if self.segment.vanishes((*self.known, *part))), chosen)

    def _rounds(self, depth: int, best: list[Combination], likely: Sequence[Combination]) -> Iterator[Round]:
        """Yield combinations with one more fault, then with one more fitted number. If only logits are known, start
        with faults at all possible taps, because most ports run the same code in all layers. Then fit numbers only at
        the taps of the best faults, to limit work."""
        is_whole = self.segment.is_whole_model
        if depth and is_whole:
            yield from self._pairs(best) if depth + 1 == PAIR else self._triples()
            return
        if depth:
            chosen = [*likely, *best][: self._width]
            longer = [(*each, one) for each in chosen for one in self.candidates if one not in each]
            yield self.screen, self.by_rest(self.screen, longer)
        else:
            yield from self._wide_rounds() if is_whole else ()
            yield self.screen, self._ranked
            if is_whole:
                yield self.screen, self._numbered(best, self._likely_fittables)
        yield self.screen, self._numbered(best, self.fittables)

    def _wide_rounds(self) -> Iterator[Round]:
        yield self.screen, self.by_rest(self.screen, [(hypothesis,) for hypothesis in widest(self.candidates)])
        yield self.screen, self._numbered([()], of_each_kind(self.fittables))

    @property
    def _likely_fittables(self) -> list[Fittable]:
        best = {_sublayers(hypothesis.sites) for (hypothesis,) in self._ranked[:BEAM]}
        return [each for each in self.fittables if _sublayers(each[1]) in best]

    @property
    def _width(self) -> int:
        return max(BEAM, self._affordable)

    @property
    def _affordable(self) -> int:
        return WALKS // max(len(self.candidates), 1)

    def _pairs(self, best: list[Combination]) -> Iterator[Round]:
        """If only logits are known, yield the pairs with the smallest difference by the sum of their effects. Then
        yield pairs with one of the best single faults, and pairs with a fitted number."""
        with contextlib.suppress(OutOfTime):
            likeliest = self._likely(PAIR, self._effects.distinct)
            yield self.screen, likeliest
            for first in self._wide[:BEAM]:
                yield self._beside(first, self._wide)
            whole = [first for (first,), _ in self._explaining]
            firsts = [*whole, *(likeliest[0] if likeliest else ()), *self._distinct]
            for first in list({id(first): first for first in firsts}.values())[: max(1, self._affordable)]:
                yield self._beside(first, self.candidates)
            yield self.screen, self._numbered(best, of_each_kind(self.fittables))

    def _triples(self) -> Iterator[Round]:
        """Yield triples of faults at all possible taps, by the sum of their effects. Then replace single faults in the
        best triples while the difference shrinks."""
        self.clock.begin(STAGES // 2)
        wide = set(map(id, self._wide))
        likeliest = self._likely(DEEPEST, [i for i in self._effects.distinct if id(self.candidates[i]) in wide])
        yield self.screen, likeliest
        for best in likeliest[: BEAM // 4]:
            triple, left = best, np.inf
            while self._left(self.screen, triple) < left:
                left = self._left(self.screen, triple)
                for place in range(len(triple)):
                    others = (*triple[:place], *triple[place + 1 :])
                    ranked = self.by_rest(self.screen, [(*others, one) for one in self._wide if one not in others])
                    yield self.screen, ranked
                    triple = ranked[0]

    def _likely(self, size: int, among: Sequence[int]) -> list[Combination]:
        sets = self._effects.likely(size, among, WALKS)
        return self.by_rest(self.screen, [tuple(self.candidates[index] for index in each) for each in sets])

    def _beside(self, first: Hypothesis, seconds: Sequence[Hypothesis]) -> Round:
        """Return the pairs of `first` and each fault in `seconds`, best first on the probe that `first` explains
        least."""
        probe = self._most_telling((first,))
        return probe, self.by_rest(probe, [(first, second) for second in seconds if second != first])

    def _numbered(self, best: Sequence[Combination], numeric: Sequence[Fittable]) -> list[Combination]:
        is_pair = self.segment.is_whole_model and best[0] != ()
        made = []
        for chosen in [*best[: BEAM // 4 * 3], *self._beside_numbers(best)] if is_pair else best[:BEAM]:
            ends = [(*chosen, one) for each in numeric if (one := self._fit(each, chosen))]
            made += ends
            if ends and any(id(one) in self.fitted for one in chosen):
                made += self._by_turns(min(ends, key=lambda end: self._left(self.screen, end)))
        return self.by_rest(self.screen, made)

    def _beside_numbers(self, best: Sequence[Combination]) -> Iterator[Combination]:
        """For each fault with a fitted number, yield the faults that best complete it; `_numbered` fits the number
        again."""
        for number in best:
            if id(number[0]) in self.fitted:
                pairs = self.by_rest(self.screen, [(*number, second) for second in self._wide])
                yield from (pair[1:] for pair in pairs[: BEAM // 4])

    def _by_turns(self, chosen: Combination) -> list[Combination]:
        left = self._left(self.screen, chosen)
        for _ in range(BEAM // 2):
            again = chosen
            for one in chosen:
                others = tuple(each for each in again if each is not one)
                if id(one) in self.fitted and (number := self._fit(self.fitted[id(one)][1], others)):
                    again = (*others, number)
            if not (less := self._left(self.screen, again)) < left:
                break
            chosen, left = again, less
        return [chosen]

    def _fit(self, fittable: Fittable, partners: Combination) -> Hypothesis | None:
        key = id(fittable), *map(id, partners)
        if key not in self._fits:
            probe = self._most_telling(partners) if partners else self.screen
            found = fit(fittable, lambda hypothesis: self._left(probe, (*partners, hypothesis)))
            if found is not None:
                self.fitted[id(found)] = found, fittable
            self._fits[key] = found
        return self._fits[key]

    def _of_sizes(self, found: list[Combination]) -> list[Combination]:
        others = {probe.config: probe for probe in self.segment.probes if probe.config != self.screen.config}
        of_sizes: list[Combination] = []
        for (hypothesis,) in [chosen for chosen in found if id(chosen[0]) in self.fitted]:
            sizes = {self.screen.config: hypothesis}
            for config, probe in others.items():
                if (again := self._refit(self.fitted[id(hypothesis)][1], probe)) is not None:
                    sizes[config] = again
            combined = (by_size(sizes),)
            if self.segment.vanishes((*self.known, *combined)):
                of_sizes.append(combined)
        return of_sizes

    def _refit(self, fittable: Fittable, probe: Probe) -> Hypothesis | None:
        numeric, sites = fittable
        kind = numeric.make(1.0).id
        same = (each for each in fittables(probe.config, list(sites)) if each[1] == sites)
        again = next((each for each in same if each[0].make(1.0).id == kind), None)
        return fit(again, lambda hypothesis: self._left(probe, (hypothesis,))) if again else None

    def partial(self) -> list[Combination]:
        """Return the faults that explain the most wrong probes; [] if they explain only one probe."""
        most = max((count for _, count in self._explaining), default=0)
        return [chosen for chosen, count in self._explaining if count == most > 1]

    @functools.cached_property
    def _explaining(self) -> list[tuple[Combination, int]]:
        """Single faults that explain `screen` or the shortest probe, each with the number of wrong probes that it
        explains. Short inputs hide some faults and so reveal others."""
        shortest = min(self.segment.probes, key=lambda probe: sum(tokens.size for tokens in probe.inputs.values()))
        off = [probe for probe in self.segment.probes if self._share(probe, ()) > 1]
        found = self._survivors(self.screen, self._ranked, [self.screen])
        if shortest in off and shortest is not self.screen:
            alone: list[Combination] = [(hypothesis,) for hypothesis in self.candidates]
            found += self._survivors(shortest, self.by_rest(shortest, alone), [shortest])
        explained = [(chosen, sum(self._share(probe, chosen) <= 1 for probe in off)) for chosen in found]
        return sorted(explained, key=lambda item: -item[1])

    @functools.cached_property
    def _ranked(self) -> list[Combination]:
        scores = []
        for hypothesis in self.clock.each(self.candidates):
            chosen = (*self.known, hypothesis)
            left = self.segment.left(self.screen, chosen)
            self.segment.keep(self.screen, chosen, left)
            self._effects.add(left)
            scores.append(rms(left))
        return [(self.candidates[index],) for index in np.argsort(scores, kind="stable")]

    @functools.cached_property
    def _wide(self) -> list[Hypothesis]:
        chosen = set(map(id, widest(self.candidates)))
        return [hypothesis for (hypothesis,) in self._ranked if id(hypothesis) in chosen]

    @functools.cached_property
    def _effects(self) -> Effects:
        return Effects(self.segment.left(self.screen, self.known), len(self.candidates))

    @property
    def _distinct(self) -> list[Hypothesis]:
        distinct = {id(self.candidates[index]) for index in self._effects.distinct}
        return [hypothesis for (hypothesis,) in self._ranked if id(hypothesis) in distinct]

    @functools.cached_property
    def _same_size(self) -> list[Probe]:
        return [probe for probe in self.segment.probes if probe.config == self.screen.config]

    def _most_telling(self, chosen: Combination) -> Probe:
        """Return the probe with the largest remaining difference, among the probes with the same sizes as `screen`."""
        return max(self._same_size, key=lambda probe: self._share(probe, chosen))

    def _left(self, probe: Probe, chosen: Combination) -> float:
        self.clock.check()
        return self.segment.rms(probe, (*self.known, *chosen))

    def _share(self, probe: Probe, chosen: Combination) -> float:
        self.clock.check()
        return self.segment.share(probe, (*self.known, *chosen))

    def by_rest(self, probe: Probe, combinations: Sequence[Combination]) -> list[Combination]:
        rests = [self._left(probe, chosen) for chosen in self.clock.each(combinations)]
        return [combinations[index] for index in np.argsort(rests, kind="stable")]

    def _survivors(self, screen: Probe, ranked: Sequence[Combination], probes: Sequence[Probe]) -> list[Combination]:
        segment = self.segment
        found, before = [], self._left(screen, ())
        with contextlib.suppress(OutOfTime):  # the combinations in `found` are confirmed
            for chosen in ranked:
                combined = (*self.known, *chosen)
                if self._left(screen, chosen) > NO_EXPLANATION * before or not segment.is_near(screen, combined):
                    break
                if segment.share(screen, combined) <= 1 and segment.vanishes(combined, probes):
                    found.append(chosen)
        return sorted(found, key=lambda chosen: (len(chosen), _preference(chosen[0])))


def screen_of(segment: Segment, known: Combination) -> Probe:
    """Return the probe with the largest difference relative to its budget, preferably with the first probe's
    configuration."""
    shares = {probe.name: segment.largest(probe, known) / (segment.budget(probe) or 1) for probe in segment.probes}
    ordinary = [
        probe for probe in segment.probes if probe.config == segment.probes[0].config and shares[probe.name] > 1
    ]
    return max(ordinary or segment.probes, key=lambda probe: shares[probe.name])


def _sublayers(sites: tuple[str, ...]) -> frozenset[str]:
    return frozenset(site.rpartition(".")[0] for site in sites)


def _preference(hypothesis: Hypothesis) -> tuple[bool, int, int]:
    """Return a sort key: faults of sharding first, then common faults, then faults at many taps."""
    identity, of_ranks = hypothesis.fault.id, hypothesis.fault.of_ranks
    return (not of_ranks, COMMON.index(identity) if identity in COMMON else len(COMMON), -len(hypothesis.sites))
