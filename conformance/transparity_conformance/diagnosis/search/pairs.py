"""Pairs of faults: choose those whose effects add up to most of the difference.

If two effects were independent, `left[one] + left[other] − before` would be left with both faults applied.
"""

from __future__ import annotations

import functools

import numpy as np

PAIRS, PARTNERS = 200, 120
"""The pairs and the partners of one fault to try: two faults together do nearly, not exactly, the sum of their effects.
"""

SAMPLE = 4096
"""Effects are added at this many random elements: those of a large model would not fit into memory."""


class Effects:
    """The difference that is left with each of a list of single faults."""

    def __init__(self, before: np.ndarray) -> None:
        """Start with `before`, the difference without any fault."""
        self.shape = before.shape
        self.drawn = np.random.default_rng(0).permutation(before.size)[:SAMPLE]
        self.before = before.ravel()[self.drawn]
        self.left: list[np.ndarray] = []

    def add(self, left: np.ndarray) -> None:
        """Append the difference that is left with the next fault."""
        self.left.append(left.ravel()[self.drawn] if left.shape == self.shape else np.full(self.before.shape, np.inf))

    @functools.cached_property
    def distinct(self) -> list[int]:
        """The indices of the faults that have a finite effect, one of each effect."""
        first = {left.tobytes(): index for index, left in reversed(list(enumerate(self.left)))}
        return sorted(index for index in first.values() if np.isfinite(self.left[index]).all())

    def likely_pairs(self) -> list[tuple[int, int]]:
        """The likeliest pairs, by index."""
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

    def likely_partners(self, one: int) -> list[int]:
        """The likeliest second faults beside `one`, by index."""
        others = [index for index in self.distinct if index != one]
        rest = [float(np.square(self.left[one] + self.left[other] - self.before).sum()) for other in others]
        return [others[index] for index in np.argsort(rest)[:PARTNERS]]
