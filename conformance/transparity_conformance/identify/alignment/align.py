"""Alignment and walk, alternating: behind a fault the reference goes on from the port's own value."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.diagnosis.walk import Impossible
from transparity_conformance.identify.alignment.flow import flow_of
from transparity_conformance.identify.alignment.found import Found, Matches
from transparity_conformance.identify.alignment.gaps import between, repeated
from transparity_conformance.identify.alignment.known_faults import (
    ByOperation,
    behind_faults,
    faults_of,
    followed,
    made_by_a_fault,
    may_be_chosen,
)
from transparity_conformance.identify.alignment.moved import further_on, only_passed, rearranged, reordered
from transparity_conformance.matching.layout import Layout
from transparity_conformance.matching.recorded import Match, Recorded
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.probes import Probe


def align(probe: Probe, port: Recorded, clock: Clock, known: Combination = ()) -> Matches:
    """Find the reference's taps among the values of a port; those behind a fault from the port's own value on.

    Args:
        port: everything that the port computed; the last value is its answer.
        clock: the time for what lies behind faults.
        known: faults of the port, which are put into the reference.
    """
    aligning = _Aligning(Found(probe, port, flow_of(probe, known), clock, {}, known))
    with contextlib.suppress(OutOfTime):
        aligning.alternate()
    aligning.complete()
    found = aligning.found.matches
    return {tap: found[tap] for tap in aligning.taps if tap in found}


class _Aligning:
    """The taps that were found until now."""

    def __init__(self, found: Found) -> None:
        self.found, self.taps = found, [*found.ours]
        self.by_value: set[str] = set()
        self.left_out: set[str] = set()
        """Taps that the port does not compute there."""

    def alternate(self) -> None:
        """Add what has the reference's numbers, and then the tap behind which more of them will have."""
        while True:
            while equal := self.found.equal() or reordered(self.found):
                self.by_value |= set(equal)
                self.found = self.found.adding(equal)
            lost = self.found.flow.without_consequence(self.found.matches, self.found.matches)
            resumed = lost and (
                rearranged(self.found, lost[0]) or further_on(self.found, lost[0]) or self._resumed(lost)
            )
            if not resumed:
                return
            passed = only_passed(self.found, set(resumed.keys() & self.found.matches.keys()))
            self.left_out |= set(passed)
            self.found = self._with_faults(self.found.without(passed).adding(resumed), resumed)

    def _with_faults(self, resumed: Found, taps: Matches) -> Found:
        """The taps that were resumed, in a reference that has their faults wherever they can be made, if then more of
        its values are the port's: one wrong line is wrong in every layer."""
        best, gained = resumed, len(resumed.equal())
        for tap, match in taps.items():
            for fault in faults_of(self.found, tap, match):
                with contextlib.suppress(Impossible):
                    wide = dataclasses.replace(resumed, known=(*resumed.known, fault))
                    if len(wide.equal()) > gained:
                        best, gained = wide, len(wide.equal())
        return best

    def complete(self) -> None:
        """Add what no value tells: the answer, what other layers tell, and what lies between faults."""
        port, flow = self.found.port, self.found.flow
        shape = self.found.ours["logits"].shape
        answer = Match(len(port.values) - 1, Layout(shape, shape, tuple(range(len(shape)))))
        self.found = self.found.adding({"logits": answer})
        lost = flow.without_consequence(self.found.matches, self.by_value - {"logits"})
        same = {tap: repeated(self.found, tap) for tap in lost}
        self.found = self.found.adding({tap: match for tap, match in same.items() if match})
        lost = [tap for tap in self._missing if tap in lost or not flow.inputs[tap]]
        guessed = between(self.found, self._told_by_flow(lost))
        with contextlib.suppress(OutOfTime):
            self._fill({tap: guessed.get(tap) for tap in self._missing if tap not in self.left_out})
        self.found = self.found.adding({tap: guessed[tap] for tap in guessed if tap not in self.found.matches})
        with contextlib.suppress(OutOfTime):
            self._exchange(self._told_apart())

    @property
    def _missing(self) -> list[str]:
        return [tap for tap in self.taps if tap not in self.found.matches]

    def _told_by_flow(self, lost: Sequence[str]) -> list[str]:
        """The taps that the flow of data may tell: no choice, and nothing made from one that was not found.

        A port that gathers the weights of few experts has those of all of them on its way, and never those of the tap.
        """
        unknown = {tap for tap in self._missing if is_choice(tap)}
        return [tap for tap in lost if not is_choice(tap) and not self.found.flow.inputs[tap] & unknown]

    def _resumed(self, lost: Collection[str]) -> Matches:
        """The first lost tap for which one of the port's values makes a later tap of the reference one of the port's,
        or which the same code computes in another layer."""
        found, port = self.found, self.found.port
        for tap in lost:
            faulty = behind_faults(found, tap)
            chosen = found.most_gaining(tap, faulty.values())
            chosen = chosen or made_by_a_fault(found, tap, followed(found, tap, faulty))
            if chosen is None:
                like = [
                    match
                    for match in port.like(found.ours[tap])
                    if may_be_chosen(tap, port.read(match))
                    if found.admits(tap, match.index) and found.keeps_features(tap, match)
                ]
                chosen = found.most_gaining(tap, like)
            chosen = chosen or repeated(found, tap)
            if chosen is not None:
                return {tap: chosen}
        return {}

    def _fill(self, guessed: Mapping[str, Match | None]) -> None:
        """Add the taps between faults: those with the numbers of one fault, the others as they are `guessed`.

        A tap may be wrong without a consequence, as scores that are shifted before a softmax.
        """
        for tap, guess in guessed.items():
            found = self.found
            faulty = followed(found, tap, behind_faults(found, tap))
            match = found.nearest(tap, found.at(tap)) or made_by_a_fault(found, tap, faulty)
            match = match or guess or _the_only(faulty)
            if match is not None:
                self.found = found.adding({tap: match})

    def _told_apart(self) -> list[str]:
        """Change the matches of equal numbers in two places such that each leads to what is made from its tap; return
        those that do so in no place."""
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

    def _exchange(self, astray: Collection[str]) -> None:
        """Find what has the numbers of other taps, as keys and values whose weights are exchanged, where it leads
        on."""
        kept = self.found.without(astray)
        for tap in astray:
            if match := _the_only(behind_faults(kept, tap)):
                self.found, kept = self.found.adding({tap: match}), kept.adding({tap: match})


def _the_only(matches: ByOperation) -> Match | None:
    return next(iter(matches.values())) if len(matches) == 1 else None
