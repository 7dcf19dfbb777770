"""A place that disagrees, and what is left of the disagreement with faults put into the reference."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.diagnosis.fault import Hypothesis
from transparity_conformance.diagnosis.walk import Base, Impossible, base_of, segment_budgets, walk
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.report.comparison import less, share

NEAR = {"float64": 1000.0, "float32": 1000.0, "bfloat16": 30.0, "float16": 30.0}
"""A budget changes with the fault (of hot scores, a hundredfold), but not by more than this: what is further off is
not measured again. In half precision everything would be nearer than a thousand budgets."""

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

    @property
    def is_all_there_is(self) -> bool:
        """Whether the port shows nothing else."""
        return all(len(flows) == 1 for flows in self.flows.values())

    @functools.cached_property
    def _bases(self) -> dict[str, Base]:
        return {}

    def _base(self, probe: Probe) -> Base | None:
        """Without any activation to go by, the walk that all others have in common."""
        if len(self.flows[probe.name]) > 1:
            return None
        if probe.name not in self._bases:
            self._bases[probe.name] = base_of(probe, self.flows[probe.name])
        return self._bases[probe.name]

    def left(self, probe: Probe, chosen: Combination) -> np.ndarray:
        """The reference with `chosen` put into it, less the port."""
        try:
            ours = walk(probe, self.flows[probe.name], chosen, until=self.tap, base=self._base(probe))[self.tap]
        except Impossible:
            return np.array([np.inf])
        return less(self.flows[probe.name][self.tap], ours)

    def share(self, probe: Probe, chosen: Combination) -> float:
        """The share of the budget that is left; the budget is measured anew if that could matter."""
        error, budget = self._worst(probe, chosen), self.budgets[probe.name]
        if budget < error < NEAR[self.dtype] * budget:
            flows = {name: value for name, value in self.flows[probe.name].items() if name != self.tap}
            changed = segment_budgets(
                probe, flows, self.dtype, chosen, until=self.tap, neighbours=min(2, probe.neighbours)
            )
            budget = max(budget, changed[self.tap])
        return share(error, budget)

    def rms(self, probe: Probe, chosen: Combination) -> float:
        return rms(self.left(probe, chosen))

    def is_near(self, probe: Probe, chosen: Combination) -> bool:
        """Whether what is left may fall within the budget."""
        return self._worst(probe, chosen) <= NEAR[self.dtype] * (self.budgets[probe.name] or 1)

    def vanishes(self, chosen: Combination) -> bool:
        """Whether the disagreement falls within the budget on every probe."""
        return all(self.share(probe, chosen) <= 1 for probe in self.probes)

    def _worst(self, probe: Probe, chosen: Combination) -> float:
        return float(np.abs(self.left(probe, chosen)).max(initial=0.0))


def rms(left: np.ndarray) -> float:
    """The root of the mean square: unlike the largest, it says how near a guess is."""
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.mean(np.square(left)))) if left.size else 0.0
