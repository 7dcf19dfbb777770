"""A place that disagrees, and what is left of the disagreement with mistakes put into the reference."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.probes import Probe
from transparity_conformance.walk import Base, Hypothesis, base_of, segment_budgets, walk

NEAR = 30.0
"""A budget changes with the mistake, but not by more than this: what is further off is not measured again."""

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
    known: Combination = ()
    """Mistakes that are put into the reference whatever is tried."""

    @functools.cached_property
    def _bases(self) -> dict[str, Base]:
        return {}

    def _base(self, probe: Probe) -> Base | None:
        """Without any activation to go by, the walk that all others have in common."""
        if len(self.flows[probe.name]) > 1:
            return None
        if probe.name not in self._bases:
            self._bases[probe.name] = base_of(probe, self.flows[probe.name], self.known)
        return self._bases[probe.name]

    def left(self, probe: Probe, chosen: Combination) -> np.ndarray:
        """The reference with `chosen` put into it, less the port."""
        ours = walk(probe, self.flows[probe.name], chosen, until=self.tap, base=self._base(probe))[self.tap]
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

    def rms(self, probe: Probe, chosen: Combination) -> float:
        return rms(self.left(probe, chosen))

    def is_near(self, probe: Probe, chosen: Combination) -> bool:
        """Whether what is left may fall within the budget."""
        left = float(np.abs(self.left(probe, chosen)).max(initial=0.0))
        return left <= NEAR * (self.budgets[probe.name] or 1)

    def vanishes(self, chosen: Combination) -> bool:
        """Whether the disagreement falls within the budget on every probe."""
        return all(self.share(probe, chosen) <= 1 for probe in self.probes)


def _less(actual: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """actual − ours; where both are NaN, or the same infinity, nothing is left, where one alone is, infinitely much."""
    if actual.shape != ours.shape:
        return np.array([math.inf])
    with np.errstate(invalid="ignore"):
        left = actual.astype(np.float64) - ours
    same = (actual == ours) | (np.isnan(actual) & np.isnan(ours))
    return np.where(same, 0.0, np.where(np.isnan(left), math.inf, left))


def rms(left: np.ndarray) -> float:
    """The root of the mean square: unlike the largest, it says how near a guess is."""
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(left)))) if left.size else 0.0
