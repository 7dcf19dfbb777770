"""Causes: which mistake, put into the reference, makes a disagreement vanish.

Single mistakes are tried exhaustively, then those that have a number are fitted, then pairs of which one is the best
single. A cause is named only if what is left with it falls within the budget on every probe.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.fitting import fitted
from transparity_conformance.mistakes import hypotheses, whole_model
from transparity_conformance.pairs import Effects
from transparity_conformance.probes import Probe
from transparity_conformance.verdict import Cause
from transparity_conformance.walk import Hypothesis, gap, segment_budgets, walk

BEAM = 3
"""Of how many best single mistakes a second is looked for."""

NEAR = 30.0
"""A budget changes with the mistake, but not by more than this: what is further off is not measured again."""

COMMON = ("attention-scale", "causal-missing", "causal-diagonal", "padding-ignored", "weight-transpose", "bias-dropped")
"""Named first where they explain as well as another."""

Combination = tuple[Hypothesis, ...]


@dataclass(frozen=True)
class Place:
    """A segment that disagrees, on every probe that has it."""

    tap: str
    probes: Sequence[Probe]
    flows: Mapping[str, Mapping[str, np.ndarray]]
    """What the port said, by probe."""
    budgets: Mapping[str, float]
    """Of this segment, by probe."""
    dtype: str
    neighbours: int

    def left(self, probe: Probe, chosen: Combination) -> np.ndarray:
        """The reference with `chosen` put into it, less the port."""
        ours = walk(probe, self.flows[probe.name], chosen, until=self.tap)[self.tap]
        return _less(self.flows[probe.name][self.tap], ours)

    def share(self, probe: Probe, chosen: Combination) -> float:
        """The share of the budget that is left; the budget is measured anew if that could matter."""
        error, budget = float(np.abs(self.left(probe, chosen)).max(initial=0.0)), self.budgets[probe.name]
        if budget < error < NEAR * budget:
            flows = {name: value for name, value in self.flows[probe.name].items() if name != self.tap}
            changed = segment_budgets(
                probe, flows, self.dtype, chosen, until=self.tap, neighbours=min(2, self.neighbours)
            )
            budget = max(budget, changed[self.tap])
        return error / budget if budget else (0.0 if error == 0 else math.inf)

    def vanishes(self, chosen: Combination) -> bool:
        """Whether the disagreement falls within the budget on every probe."""
        return all(self.share(probe, chosen) <= 1 for probe in self.probes)


@dataclass(frozen=True)
class Answer:
    """What is known about the cause of a disagreement."""

    causes: tuple[Cause, ...] = ()
    chosen: Combination = ()
    indistinguishable: tuple[str, ...] = ()
    split_by: str | None = None


def explain(
    place: Place,
    sites: list[str],
    known: Combination,
    others: Mapping[str, Probe],
    before_it: Mapping[str, Answer],
) -> Answer:
    """The cause of the disagreement at `place`, made at one of `sites`, with `known` mistakes already put in.

    `others` are all probes that there are: one of them may split a tie. `before_it` are the answers for other places:
    who scales wrongly in one layer does so in the next.
    """
    screen = _screen(place, known)
    config = screen.config
    before = _rms(place.left(screen, known))
    if (alike := _as_before(place, known, before, screen, before_it)) is not None:
        return alike
    candidates = [(h,) for h in hypotheses(config, sites)]
    if place.tap == "logits":
        candidates += [(h,) for h in whole_model(config)]

    def left(*chosen: Hypothesis) -> float:
        return _rms(place.left(screen, (*known, *chosen)))

    def by_what_is_left(combinations: Sequence[Combination]) -> list[Combination]:
        return sorted(combinations, key=lambda chosen: left(*chosen))

    effects, alone = Effects(place.left(screen, known)), []
    for one in candidates:
        with_it = place.left(screen, (*known, *one))
        effects.add(with_it)
        alone.append(_rms(with_it))
    singles = [candidates[index] for index in np.argsort(alone, kind="stable")]
    found = _survivors(place, screen, known, singles)
    if not found:
        # A number without a name says nothing about a model of another size.
        sized = dataclasses.replace(place, probes=[probe for probe in place.probes if probe.config == config])
        found = _survivors(sized, screen, known, by_what_is_left([(h,) for h in fitted(config, sites, left)]))
    if not found:
        likely = by_what_is_left([(*candidates[i], *candidates[j]) for i, j in effects.likely_pairs()])
        found = _survivors(place, screen, known, likely)
    if not found:
        firsts = [*(likely[0] if likely else ()), *(hypothesis for (hypothesis,) in singles)]
        for first in firsts[:BEAM]:
            pairs = by_what_is_left([(first, second) for (second,) in candidates if second != first])
            if found := _survivors(place, screen, known, pairs[:BEAM]):
                break
    if not found:
        return Answer()
    chosen = found[0]
    causes = tuple(_cause(place, known, chosen, index, before, screen) for index in range(len(chosen)))
    rivals = [rival for rival in found[1:] if rival[0].mistake.id != chosen[0].mistake.id] if len(chosen) == 1 else []
    ids = tuple(dict.fromkeys(rival[0].mistake.id for rival in rivals))
    splits = (_split_by(place, known, chosen, rival, others) for rival in rivals)
    return Answer(causes, chosen, ids, next((name for name in splits if name), None))


def _screen(place: Place, known: Combination) -> Probe:
    """The probe that shows most, of the ordinary size if it shows there at all: numbers are told in that."""
    shares = {
        probe.name: float(np.abs(place.left(probe, known)).max(initial=0.0)) / (place.budgets[probe.name] or 1)
        for probe in place.probes
    }
    ordinary = [probe for probe in place.probes if probe.config == place.probes[0].config and shares[probe.name] > 1]
    return max(ordinary or place.probes, key=lambda probe: shares[probe.name])


def _as_before(
    place: Place, known: Combination, before: float, screen: Probe, before_it: Mapping[str, Answer]
) -> Answer | None:
    """The answer of a place of the same kind, if it holds here, too."""
    for tap, answer in before_it.items():
        alike = kind_of(tap) == kind_of(place.tap) and len(answer.chosen) == 1 and answer.chosen[0].sites == (tap,)
        if alike:
            chosen = (Hypothesis(answer.chosen[0].mistake, (place.tap,)),)
            if place.share(screen, (*known, *chosen)) <= 1 and place.vanishes((*known, *chosen)):
                cause = _cause(place, known, chosen, 0, before, screen)
                return Answer((cause,), chosen, answer.indistinguishable, answer.split_by)
    return None


def kind_of(tap: str) -> str:
    """`norms` of every norm's tap, `scores` of all scores, and so on."""
    last = tap.rpartition(".")[2]
    if last in ("query", "key", "value"):
        return "query_key_value"
    if last.endswith("_norm"):
        return "norms"
    if "feed_forward." in tap:
        return "feed_forward"
    if tap.endswith("attention.output"):
        return "attention_output"
    if last == "output":
        return f"{tap.split('.')[0]}_layers" if ".layers." in tap else "stacks"
    return last


def _survivors(place: Place, screen: Probe, known: Combination, ranked: Sequence[Combination]) -> list[Combination]:
    """Those that make the disagreement vanish, the catalogue's order among equals: `ranked` is by what is left."""
    found = []
    for chosen in ranked:
        combined = (*known, *chosen)
        if float(np.abs(place.left(screen, combined)).max(initial=0.0)) > NEAR * (place.budgets[screen.name] or 1):
            break
        if place.share(screen, combined) <= 1 and place.vanishes(combined):
            found.append(chosen)
    return sorted(found, key=lambda chosen: (len(chosen), _preference(chosen[0])))


def _preference(hypothesis: Hypothesis) -> tuple[int, int]:
    """Among what explains equally well: what people do more often, and what is made in one place of the code."""
    identity = hypothesis.mistake.id
    return (COMMON.index(identity) if identity in COMMON else len(COMMON), -len(hypothesis.sites))


def _cause(place: Place, known: Combination, chosen: Combination, index: int, before: float, screen: Probe) -> Cause:
    mistake = chosen[index].mistake
    until_here = (*known, *chosen[: index + 1])
    residual = float(np.abs(place.left(place.probes[0], until_here)).max(initial=0.0))
    gone = 1 - _rms(place.left(screen, until_here)) / before if before else 1.0
    says = mistake.says if place.tap in chosen[index].sites else f"{mistake.says}, {_at(chosen[index])}"
    return Cause(mistake.id, says, mistake.value, residual, max(0.0, gone))


def _at(hypothesis: Hypothesis) -> str:
    sites = hypothesis.sites
    if not sites:
        return "in the whole model"
    return f"at {sites[0]}" + (f" and {len(sites) - 1} more like it" if sites[1:] else "")


def _split_by(
    place: Place, known: Combination, chosen: Combination, rival: Combination, others: Mapping[str, Probe]
) -> str | None:
    """The first probe on which the two differ by more than rounding."""
    for name, probe in others.items():
        flows = place.flows.get(name, {})
        ours, theirs = (walk(probe, flows, (*known, *one), until=place.tap)[place.tap] for one in (chosen, rival))
        if gap(ours, theirs) > place.budgets.get(name, 1e-4 * float(np.nanmax(np.abs(ours)))):
            return name
    return None


def _less(actual: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """actual − ours; where both are NaN, or the same infinity, nothing is left, where one alone is, infinitely much."""
    if actual.shape != ours.shape:
        return np.array([math.inf])
    with np.errstate(invalid="ignore"):
        left = actual.astype(np.float64) - ours
    same = (actual == ours) | (np.isnan(actual) & np.isnan(ours))
    return np.where(same, 0.0, np.where(np.isnan(left), math.inf, left))


def _rms(left: np.ndarray) -> float:
    """The root of the mean square: unlike the largest, it says how near a guess is."""
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(left)))) if left.size else 0.0
