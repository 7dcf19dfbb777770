"""Identify features of linear maps by value, for maps that pack them in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.identify.fitting.values.numbers import SAME


@dataclass(frozen=True, eq=False)
class Columns:
    """The results of several linear maps of one input, concatenated."""

    maps: Sequence[Linear]

    @property
    def made(self) -> np.ndarray:
        """Return the results, as (rows, features)."""
        return np.concatenate([each.made for each in self.maps], axis=1)

    def matching(
        self,
        wanted: np.ndarray,
        by: Callable[[np.ndarray], np.ndarray] = lambda x: x,
        times: np.ndarray | None = None,
    ) -> list[int] | None:
        """Return, for each feature of `wanted` (rows, features), the index of the feature from which `by` computes it.

        `times` multiplies each computed feature. Return None if a feature has no source, or if two features have the
        same source.
        """
        made, times = by(self.made), np.ones_like(wanted) if times is None else times
        scale = np.abs(wanted).max(initial=0.0)
        # Compare a few rows first, which excludes most candidates.
        few = np.linspace(0, len(wanted) - 1, min(5, len(wanted))).astype(int)
        products = times[few][:, :, None] * made[few][:, None, :]
        near = (np.abs(wanted[few][:, :, None] - products) <= SAME * scale).all(0)
        found = []
        for feature, candidates in enumerate(near):
            options = np.flatnonzero(candidates)
            errors = np.abs(times[:, [feature]] * made[:, options] - wanted[:, [feature]]).max(0, initial=0.0)
            if not len(options) or errors.min() > SAME * scale:
                return None
            found.append(int(options[errors.argmin()]))
        return found if len(set(found)) == len(found) else None

    def linear(self, chosen: Sequence[int]) -> Linear:
        """Return the linear map that computes the features `chosen`.

        If only some of them have a bias, the others have a bias of 0.
        """
        sizes = np.cumsum([0, *(len(each.weight) for each in self.maps)])
        places = [(int(np.searchsorted(sizes, each, "right")) - 1, each) for each in chosen]
        rows = [(self.maps[index], each - int(sizes[index])) for index, each in places]
        has_bias = any(one.bias is not None for one, _ in rows)
        bias = np.array([0.0 if one.bias is None else one.bias[row] for one, row in rows]) if has_bias else None
        first = self.maps[places[0][0]]
        return Linear(
            first.at,
            first.given,
            self.made[:, list(chosen)],
            np.stack([one.weight[row] for one, row in rows]),
            first.name,
            bias,
            first.bias_name,
        )

    def without(self, *taken: Sequence[int]) -> list[int]:
        """Return, in order, the features that are in none of `taken`."""
        used = {each for group in taken for each in group}
        return [each for each in range(self.made.shape[1]) if each not in used]
