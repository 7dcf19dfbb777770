"""Two mistakes at once: of all pairs, those whose effects add up to most of what is to be explained."""

from __future__ import annotations

import numpy as np

MOST = 200
"""So many pairs are tried: what two mistakes do together is near the sum of what each does, but not the same."""

SAMPLE = 4096
"""Of so many numbers, drawn, the effects are added: those of a large model would not fit into memory."""


class Effects:
    """What single mistakes, tried one after the other, make of a disagreement."""

    def __init__(self, before: np.ndarray) -> None:
        """`before` is the disagreement without any of them."""
        self.shape = before.shape
        self.drawn = np.random.default_rng(0).permutation(before.size)[:SAMPLE]
        self.before = before.ravel()[self.drawn]
        self.left: list[np.ndarray] = []

    def add(self, left: np.ndarray) -> None:
        """What is left with the next one."""
        self.left.append(left.ravel()[self.drawn] if left.shape == self.shape else np.full(self.before.shape, np.inf))

    def likely_pairs(self) -> list[tuple[int, int]]:
        """The likeliest pairs by their numbers, best first.

        With both, what is left would be left[one] + left[other] − before if the effects were independent.
        """
        first = {left.tobytes(): index for index, left in reversed(list(enumerate(self.left)))}
        distinct = sorted(index for index in first.values() if np.isfinite(self.left[index]).all())
        if len(distinct) < 2 or not np.isfinite(self.before).all():
            return []
        effects = np.stack([self.left[index] for index in distinct]) - self.before
        products, reach = effects @ effects.T, effects @ self.before
        alone = np.diag(products) + 2 * reach
        rest = alone[:, None] + alone[None, :] + 2 * products
        rest[np.tril_indices(len(rest))] = np.inf
        most = min(MOST, len(rest) * (len(rest) - 1) // 2)
        best = np.argpartition(rest, most - 1, axis=None)[:most]
        return [(distinct[i], distinct[j]) for i, j in zip(*np.unravel_index(best, rest.shape), strict=True)]
