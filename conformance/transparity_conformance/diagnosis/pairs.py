"""Two faults at once: of all pairs, those whose effects add up to most of what is to be explained.

With both, left[one] + left[other] − before would be left if the effects were independent.
"""

from __future__ import annotations

import functools

import numpy as np

PAIRS, SECONDS = 200, 120
"""So many are tried: what two faults do together is near the sum of what each does, but not the same."""

SAMPLE = 4096
"""Of so many numbers, drawn, the effects are added: those of a large model would not fit into memory."""


class Effects:
    """What single faults, tried one after the other, make of a disagreement."""

    def __init__(self, before: np.ndarray) -> None:
        """`before` is the disagreement without any of them."""
        self.shape = before.shape
        self.drawn = np.random.default_rng(0).permutation(before.size)[:SAMPLE]
        self.before = before.ravel()[self.drawn]
        self.left: list[np.ndarray] = []

    def add(self, left: np.ndarray) -> None:
        """What is left with the next one."""
        self.left.append(left.ravel()[self.drawn] if left.shape == self.shape else np.full(self.before.shape, np.inf))

    @functools.cached_property
    def distinct(self) -> list[int]:
        """The numbers of those that do something of their own."""
        first = {left.tobytes(): index for index, left in reversed(list(enumerate(self.left)))}
        return sorted(index for index in first.values() if np.isfinite(self.left[index]).all())

    def likely_pairs(self) -> list[tuple[int, int]]:
        """The likeliest pairs by their numbers."""
        if len(self.distinct) < 2:
            return []
        effects = np.stack([self.left[index] for index in self.distinct]) - self.before
        products, reach = effects @ effects.T, effects @ self.before
        alone = np.diag(products) + 2 * reach
        rest = alone[:, None] + alone[None, :] + 2 * products
        rest[np.tril_indices(len(rest))] = np.inf
        best = np.argsort(rest, axis=None)[: min(PAIRS, len(rest) * (len(rest) - 1) // 2)]
        chosen = zip(*np.unravel_index(best, rest.shape), strict=True)
        return [(self.distinct[one], self.distinct[other]) for one, other in chosen]

    def likely_beside(self, one: int) -> list[int]:
        """What is likeliest made besides `one`."""
        others = [index for index in self.distinct if index != one]
        rest = [float(np.square(self.left[one] + self.left[other] - self.before).sum()) for other in others]
        return [others[index] for index in np.argsort(rest)[:SECONDS]]
