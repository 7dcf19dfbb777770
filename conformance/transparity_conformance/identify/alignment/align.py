"""Find the port's operation for each tap of the reference by value. After a fault, continue from the port's value."""

from __future__ import annotations

import contextlib
from collections.abc import Collection

import numpy as np

from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.identify.alignment import gaps, known_faults
from transparity_conformance.identify.alignment.found import Found, Matches, flow_of
from transparity_conformance.matching.recorded import Layout, Match, Recorded
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.probes import Probe


def align(probe: Probe, port: Recorded, clock: Clock, known: Combination = ()) -> Matches:
    aligning = _Aligning(Found(probe, port, flow_of(probe, known), clock, {}, known))
    with contextlib.suppress(OutOfTime):
        aligning.alternate()
    aligning.complete()
    found = aligning.found.matches
    return {tap: found[tap] for tap in aligning.taps if tap in found}


class _Aligning:
    def __init__(self, found: Found) -> None:
        self.found, self.taps = found, [*found.ours]
        self.by_value: set[str] = set()
        self.left_out: set[str] = set()
        """Taps without a match: the port computes them in later operations, for example by a norm that it applies
        later."""

    def alternate(self) -> None:
        """Match all taps whose values agree, then one tap with a wrong value. Repeat this until no tap gets a match."""
        while True:
            while equal := self.found.equal() or gaps.reordered(self.found):
                self.by_value |= set(equal)
                self.found = self.found.adding(equal)
            lost = self.found.flow.without_consequence(self.found.matches, self.found.matches)
            resumed = lost and (gaps.further_on(self.found, lost[0]) or self._resumed(lost))
            if not resumed:
                return
            passed = gaps.only_passed(self.found, resumed.keys() & self.found.matches.keys())
            self.left_out |= set(passed)
            self.found = self.found.without(passed).adding(resumed)

    def complete(self) -> None:
        """Match the logits, then missing taps by the data flow or by known faults."""
        port, flow = self.found.port, self.found.flow
        shape = self.found.ours["logits"].shape
        answer = Match(len(port.values) - 1, Layout(shape, shape, tuple(range(len(shape)))))
        self.found = self.found.adding({"logits": answer})
        lost = flow.without_consequence(self.found.matches, self.by_value - {"logits"})
        lost = [tap for tap in self._missing if tap in lost or not flow.inputs[tap]]
        # A port may never compute a router's choice as an array, for example if it gathers the chosen weights.
        unknown = {tap for tap in self._missing if is_choice(tap)}
        guessed = gaps.between(
            self.found, [tap for tap in lost if tap not in unknown and not flow.inputs[tap] & unknown]
        )
        with contextlib.suppress(OutOfTime):
            # A missing tap may be wrong without any effect on later values: for example, shifted scores.
            for tap in [tap for tap in self._missing if tap not in self.left_out]:
                found = self.found
                faulty = known_faults.followed(found, tap, known_faults.behind_faults(found, tap))
                match = found.nearest(tap, found.at(tap)) or known_faults.made_by_a_fault(found, tap, faulty)
                match = match or guessed.get(tap) or _the_only(faulty)
                if match is not None:
                    self.found = found.adding({tap: match})
        self.found = self.found.adding({tap: guessed[tap] for tap in guessed if tap not in self.found.matches})
        with contextlib.suppress(OutOfTime):
            astray = self._told_apart()
            kept = self.found.without(astray)
            for tap in astray:  # swapped keys and values match each other's taps: distinguish them by their use
                if match := _the_only(known_faults.behind_faults(kept, tap)):
                    self.found, kept = self.found.adding({tap: match}), kept.adding({tap: match})

    @property
    def _missing(self) -> list[str]:
        return [tap for tap in self.taps if tap not in self.found.matches]

    def _resumed(self, lost: Collection[str]) -> Matches:
        found, port = self.found, self.found.port
        for tap in lost:
            faulty = known_faults.behind_faults(found, tap)
            chosen = found.most_gaining(tap, faulty.values())
            chosen = chosen or known_faults.made_by_a_fault(found, tap, known_faults.followed(found, tap, faulty))
            if chosen is None:
                like = [
                    match
                    for match in port.like(found.ours[tap])
                    # A choice of experts contains only 0 and 1, unlike a softmax over all experts.
                    if not is_choice(tap) or np.isin(port.read(match), (0, 1)).all()
                    if found.admits(tap, match.index) and found.keeps_features(tap, match)
                ]
                chosen = found.most_gaining(tap, like)
            if chosen is not None:
                return {tap: chosen}
        return {}

    def _told_apart(self) -> list[str]:
        """If a match is not on its tap's path in the data flow, move it to an equal value on the path. Return the taps
        without such a value."""
        astray, port = [], self.found.port
        for tap in [tap for tap in self.taps if tap in self.found.matches]:
            found, match = self.found, self.found.matches[tap]

            def on_its_way(index: int, tap: str = tap, found: Found = found) -> bool:
                others = found.without([name for name, each in found.matches.items() if each.index == index])
                return found.admits(tap, index) and others.leads_on(tap, index)

            if not on_its_way(match.index):
                other = port.nearest(port.read(match), may_be=on_its_way)
                astray += [] if other else [tap]
                self.found = found.adding({tap: other or match})
        return astray


def _the_only(matches: known_faults.ByOperation) -> Match | None:
    return next(iter(matches.values())) if len(matches) == 1 else None
