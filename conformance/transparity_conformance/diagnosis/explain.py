"""Causes: which fault, put into the reference, makes a disagreement vanish.

Single faults are tried exhaustively, then those that have a number are fitted, then pairs of which one is among the
best singles. A cause is named only if what is left with it falls within the budget on every probe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from transparity_conformance.diagnosis.fault import Hypothesis
from transparity_conformance.diagnosis.faults import hypotheses, whole_model
from transparity_conformance.diagnosis.search import Search
from transparity_conformance.diagnosis.segment import Combination, Place, rms
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import gap
from transparity_conformance.report.report import Cause


@dataclass(frozen=True)
class Answer:
    """What is known about the cause of a disagreement."""

    causes: tuple[Cause, ...] = ()
    chosen: Combination = ()
    indistinguishable: tuple[str, ...] = ()
    split_by: str | None = None
    remains: bool = False
    """Whether something else is left: on some probes the cause explains everything, on others it does not."""


def explain(
    place: Place,
    sites: list[str],
    known: Combination,
    others: Mapping[str, Probe],
    before_it: Mapping[str, Answer],
) -> Answer:
    """The cause of the disagreement at `place`, made at one of `sites`, with `known` faults already put in.

    `others` are all probes that there are: one of them may split a tie. `before_it` are the answers for other places:
    who scales wrongly in one layer does so in the next.
    """
    screen = _screen(place, known)
    config = screen.config
    before = rms(place.left(screen, known))
    if (alike := _as_before(place, known, before, screen, before_it)) is not None:
        return alike
    candidates = hypotheses(config, sites)
    if place.tap == "logits":
        candidates += whole_model(config)
    search = Search(place, known, screen, candidates)
    found, remains = search.singles(), False
    if not found:
        found, remains = search.fitted(config, sites)
    if not found and not _puzzling(place, before_it):
        found, remains = search.pairs()
        if not found or remains:
            with_numbers = search.pairs_with_a_number(config, sites)
            found, remains = with_numbers if with_numbers[0] else (found, remains)
    if not found:
        found, remains = search.partial(), True
    if not found:
        return Answer()
    chosen, *rest = found
    causes = tuple(_cause(place, known, chosen, index, before, screen) for index in range(len(chosen)))
    rivals = [rival for rival in rest if rival[0].fault.id != chosen[0].fault.id] if len(chosen) == 1 else []
    ids = tuple(dict.fromkeys(rival[0].fault.id for rival in rivals))
    splits = (_split_by(place, known, chosen, rival, others) for rival in rivals)
    return Answer(causes, chosen, ids, next((name for name in splits if name), None), remains=remains)


def _puzzling(place: Place, before_it: Mapping[str, Answer]) -> bool:
    """Whether another place of the kind is unexplained: so is this one, by any two faults."""
    return any(tap_kind(tap) == tap_kind(place.tap) and not answer.causes for tap, answer in before_it.items())


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
        alike = tap_kind(tap) == tap_kind(place.tap) and len(answer.chosen) == 1 and answer.chosen[0].sites == (tap,)
        if alike:
            chosen = (Hypothesis(answer.chosen[0].fault, (place.tap,)),)
            if place.share(screen, (*known, *chosen)) <= 1 and place.vanishes((*known, *chosen)):
                cause = _cause(place, known, chosen, 0, before, screen)
                return Answer((cause,), chosen, answer.indistinguishable, answer.split_by)
    return None


def tap_kind(tap: str) -> str:
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


def _cause(place: Place, known: Combination, chosen: Combination, index: int, before: float, screen: Probe) -> Cause:
    fault = chosen[index].fault
    until_here = (*known, *chosen[: index + 1])
    residual = float(np.abs(place.left(place.probes[0], until_here)).max(initial=0.0))
    gone = 1 - rms(place.left(screen, until_here)) / before if before else 1.0
    says = fault.says if place.tap in chosen[index].sites else f"{fault.says}, {_at(chosen[index])}"
    return Cause(fault.id, says, fault.value, residual, max(0.0, gone))


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
