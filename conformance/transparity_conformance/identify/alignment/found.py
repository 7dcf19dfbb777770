"""The taps that were found in a call of a port: behind a fault the reference continues from the port's own value."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.flow import Flow
from transparity_conformance.matching.recorded import Match, Recorded
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe

Matches = Mapping[str, Match]


@dataclass(frozen=True, eq=False)
class Found:
    """The operations of a port that compute taps, and the reference on their values."""

    probe: Probe
    port: Recorded
    flow: Flow
    clock: Clock
    """The time that is left."""
    matches: Matches
    known: Combination = ()
    """Faults of the port, which the reference has, too."""

    def adding(self, matches: Matches) -> Found:
        """Return the same with more taps, or with others."""
        return dataclasses.replace(self, matches={**self.matches, **matches})

    def without(self, taps: Iterable[str]) -> Found:
        """Return the same without some taps."""
        left = set(taps)
        return dataclasses.replace(self, matches={tap: each for tap, each in self.matches.items() if tap not in left})

    @functools.cached_property
    def values(self) -> Arrays:
        """The port's values, in the shapes of the taps."""
        return {tap: self.port.read(match) for tap, match in self.matches.items()}

    @functools.cached_property
    def ours(self) -> Mapping[str, np.ndarray]:
        """The reference's values of all taps, each made from the port's."""
        return walk(self.probe, self.values, self.known)

    def at(self, tap: str, faults: Sequence[Hypothesis] = ()) -> np.ndarray:
        """Return the reference's value of one tap, with faults."""
        return walk(self.probe, self.values, (*self.known, *faults), until=tap)[tap]

    def index(self, tap: str) -> int:
        """Return the operation of a tap."""
        return self.matches[tap].index

    def admits(self, tap: str, index: int) -> bool:
        """Return whether an operation may be `tap`, given those in front of it and behind it.

        A fault may cut some of the ways between two taps; one of them has to be left on each side.
        """
        before, behind = self._next(tap, self.flow.inputs), self._next(tap, self.flow.outputs)
        is_fed = not before or any(self.port.leads_to(each, index) for each in before)
        return is_fed and (not behind or any(self.port.leads_to(index, each) for each in behind))

    def _next(self, tap: str, next_to: Mapping[str, frozenset[str]]) -> set[int]:
        """The operations of the taps that are nearest to `tap` in one direction."""
        found: set[int] = set()
        for name in next_to[tap]:
            found |= {self.index(name)} if name in self.matches else self._next(name, next_to)
        return found

    def leads_on(self, tap: str, index: int) -> bool:
        """Return whether an operation leads to nothing but what is made from `tap`, and is no other tap that is only
        moved; of equal values one is on its way."""
        port, behind = self.port, self.flow.behind[tap]
        return not any(
            (name not in behind and port.leads_to(index, match.index))
            or (port.leads_to(match.index, index) and port.has_numbers_of(index, match.index))
            for name, match in self.matches.items()
        )

    def keeps_features(self, tap: str, match: Match) -> bool:
        """Return whether the features of a value are split as those of what it is made from, of the same shape."""
        before = [self.matches[name].layout for name in self.flow.inputs[tap] if name in self.matches]
        return all(layout.split == match.layout.split for layout in before if layout.ours == match.layout.ours)

    def nearest(self, tap: str, ours: np.ndarray) -> Match | None:
        """Return the operation with the reference's value of a tap, if it may be that."""
        return self.port.nearest(ours, may_be=lambda index: self.admits(tap, index))

    def equal(self) -> dict[str, Match]:
        """Return the operations with the reference's values of further taps."""
        return self.port.equal({tap: value for tap, value in self.ours.items() if tap not in self.matches})

    def most_gaining(
        self, tap: str, matches: Iterable[Match], before: Mapping[str, np.ndarray] | None = None
    ) -> Match | None:
        """Return the match at `tap` with which most further taps are among the port's values; None if none gains any.

        Args:
            before: the reference's values without it; those of `ours` by default.
        """
        most, chosen = 0, None
        for match in matches:
            self.clock.check()
            gained = self._gained(tap, match, self.ours if before is None else before)
            if gained > most:  # of values that differ by what a norm or a softmax removes, the first is the tap
                most, chosen = gained, match
        return chosen

    def _gained(self, tap: str, match: Match, before: Mapping[str, np.ndarray]) -> int:
        """The number of taps behind `tap` that are among the port's values only with a match, and not behind one that
        is not."""
        value = self.port.read(match)
        now = walk(self.probe, {**self.values, tap: value}, self.known)
        changed = [name for name in now if name != tap and not np.array_equal(now[name], before[name], equal_nan=True)]
        gained, absent = 0, set[str]()
        for name in changed:
            if name in absent or np.array_equal(now[name], value, equal_nan=True):  # the same under another name
                continue
            further = self.port.nearest(now[name], match.index)
            if further is None or not self.port.leads_to(match.index, further.index):
                absent |= self.flow.behind[name]
                continue
            if name in self.matches and self.index(name) != further.index:
                break
            gained += name not in self.matches
        return gained
