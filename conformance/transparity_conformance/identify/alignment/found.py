"""The taps that have been found in a call of a port, and the data flow between taps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.search.clock import Clock
from transparity_conformance.diagnosis.segment import Combination
from transparity_conformance.diagnosis.walk import dependents, walk
from transparity_conformance.matching.recorded import Match, Recorded
from transparity_conformance.oracle.near_ties import is_choice
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.models import small_system


@dataclass(frozen=True)
class Flow:
    inputs: Mapping[str, frozenset[str]]
    outputs: Mapping[str, frozenset[str]]

    @functools.cached_property
    def behind(self) -> Mapping[str, frozenset[str]]:
        found: dict[str, frozenset[str]] = {}
        for tap in reversed([*self.outputs]):
            found[tap] = self.outputs[tap].union(*(found.get(name, frozenset()) for name in self.outputs[tap]))
        return found

    def reached(self, tap: str, found: Collection[str]) -> set[str]:
        """Return the taps that depend on `tap` directly or only through taps outside `found`."""
        reached: set[str] = set()
        waiting = [tap]
        while waiting:
            new = self.outputs[waiting.pop()] - reached
            reached |= new
            waiting += [name for name in new if name not in found]
        return reached

    def without_consequence(self, found: Collection[str], confirming: Collection[str]) -> list[str]:
        """Return the taps outside `found` from which no tap of `confirming` follows; a router's choices do not
        confirm."""
        telling = {tap for tap in confirming if not is_choice(tap)}
        return [tap for tap in self.outputs if tap not in found and not self.reached(tap, found) & telling]


def flow_of(probe: Probe, known: Combination = ()) -> Flow:
    """Perturb each tap of the reference (or of a small model with as many layers); return the taps that change."""
    if probe.is_large:
        known = ()
        layers = {name: getattr(probe.config, name) for name in ("num_encoder_layers", "num_decoder_layers")}
        small = small_system(probe.config, **layers)
        probe = Probe(
            probe.case, "flow", "the flow of data", small, probe_parameters(small), mixed_inputs(small, 0, 9, 7)
        )
    ours = walk(probe, {}, known)
    outputs = {tap: frozenset(dependents(probe, ours, ours, tap, known)) - {tap} for tap in ours}
    inputs = {tap: frozenset(name for name in ours if tap in outputs[name]) for tap in ours}
    return Flow(inputs, outputs)


Matches = Mapping[str, Match]


@dataclass(frozen=True, eq=False)
class Found:
    probe: Probe
    port: Recorded
    flow: Flow
    clock: Clock
    matches: Matches
    known: Combination = ()

    def adding(self, matches: Matches) -> Found:
        return dataclasses.replace(self, matches={**self.matches, **matches})

    def without(self, taps: Iterable[str]) -> Found:
        left = set(taps)
        return dataclasses.replace(self, matches={tap: each for tap, each in self.matches.items() if tap not in left})

    @functools.cached_property
    def values(self) -> Arrays:
        return {tap: self.port.read(match) for tap, match in self.matches.items()}

    @functools.cached_property
    def ours(self) -> Mapping[str, np.ndarray]:
        return walk(self.probe, self.values, self.known)

    def at(self, tap: str, faults: Sequence[Hypothesis] = ()) -> np.ndarray:
        return walk(self.probe, self.values, (*self.known, *faults), until=tap)[tap]

    def index(self, tap: str) -> int:
        return self.matches[tap].index

    def admits(self, tap: str, index: int) -> bool:
        """Return whether an operation lies on a path from a tap before `tap` to a tap after `tap`."""
        before, behind = self._next(tap, self.flow.inputs), self._next(tap, self.flow.outputs)
        is_fed = not before or any(self.port.leads_to(each, index) for each in before)
        return is_fed and (not behind or any(self.port.leads_to(index, each) for each in behind))

    def _next(self, tap: str, next_to: Mapping[str, frozenset[str]]) -> set[int]:
        found: set[int] = set()
        for name in next_to[tap]:
            found |= {self.index(name)} if name in self.matches else self._next(name, next_to)
        return found

    def leads_on(self, tap: str, index: int) -> bool:
        """Return whether only taps after `tap` depend on an operation, and whether the operation does more than
        rearrange another tap."""
        port, behind = self.port, self.flow.behind[tap]
        return not any(
            (name not in behind and port.leads_to(index, match.index))
            or (port.leads_to(match.index, index) and port.has_numbers_of(index, match.index))
            for name, match in self.matches.items()
        )

    def keeps_features(self, tap: str, match: Match) -> bool:
        """Return whether the features of `match` are split into heads as in the matches of `tap`'s inputs."""
        before = [self.matches[name].layout for name in self.flow.inputs[tap] if name in self.matches]
        return all(layout.split == match.layout.split for layout in before if layout.ours == match.layout.ours)

    def nearest(self, tap: str, ours: np.ndarray) -> Match | None:
        return self.port.nearest(ours, may_be=lambda index: self.admits(tap, index))

    def equal(self) -> dict[str, Match]:
        return self.port.equal({tap: value for tap, value in self.ours.items() if tap not in self.matches})

    def most_gaining(
        self, tap: str, matches: Iterable[Match], before: Mapping[str, np.ndarray] | None = None
    ) -> Match | None:
        """Return the match from which the reference computes the most later values of the port; None if there are no
        such values."""
        most, chosen = 0, None
        for match in matches:
            self.clock.check()
            gained = self._gained(tap, match, self.ours if before is None else before)
            if gained > most:  # if several gain equally, keep the first
                most, chosen = gained, match
        return chosen

    def _gained(self, tap: str, match: Match, before: Mapping[str, np.ndarray]) -> int:
        value = self.port.read(match)
        now = walk(self.probe, {**self.values, tap: value}, self.known)
        changed = [name for name in now if name != tap and not np.array_equal(now[name], before[name], equal_nan=True)]
        gained, absent = 0, set[str]()
        for name in changed:
            if name in absent or np.array_equal(now[name], value, equal_nan=True):  # the match itself
                continue
            further = self.port.nearest(now[name], match.index)
            if further is None or not self.port.leads_to(match.index, further.index):
                absent |= self.flow.behind[name]
                continue
            if name in self.matches and self.index(name) != further.index:
                break
            gained += name not in self.matches
        return gained
