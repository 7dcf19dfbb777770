"""Derivatives along directions that change all parameters at once: whether every gradient is right, in a few.

Each parameter leans as far as makes its part of the derivative as large as that of any other, by the gradients that are
judged: else a small gradient would be lost beside a large one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.taps import Tap
from transparity_conformance.oracle.differentiation.derivatives import Derivatives
from transparity_conformance.oracle.differentiation.leaning import Leaning, along
from transparity_conformance.oracle.oracle import Arrays, Oracle

COUNT = 8
"""Directions: a wrong gradient shows in nearly every one."""

FAINT = 1e-2
"""The smallest gradient, by its norm beside the median, that counts as much as others: one that is 0 but for rounding,
as that of a key's bias, would make rounding count."""

POINTS = 3
"""The points at which rounding is measured."""


class Together:
    """The derivatives of the loss along a few directions, in each of which all parameters lean.

    Args:
        each: the model, its batch and its loss.
        gradients: those that are judged, by which parameters lean more or less.
        known: the parameters that lean.
    """

    def __init__(self, each: Derivatives, gradients: Mapping[str, np.ndarray], known: list[str]) -> None:
        self.each, random = each, np.random.default_rng(8)
        sizes = {name: float(np.linalg.norm(np.asarray(gradients[name], np.float32))) for name in known}
        usual = float(np.median([size for size in sizes.values() if 0 < size < np.inf] or [1.0]))
        sizes = {name: max(size, FAINT * usual) if size < np.inf else usual for name, size in sizes.items()}
        drawn = {name: [random.normal(size=(COUNT, part.shape[1])) for part in each.directions[name]] for name in known}
        self.directions = {name: (first / sizes[name], *others) for name, (first, *others) in drawn.items()}
        self.oracle = Oracle(self._run, each.oracle.arrays, neighbours=POINTS)

    def along(self, gradients: Mapping[str, np.ndarray]) -> np.ndarray:
        """The derivatives that follow from `gradients`: one for each direction."""
        return np.sum([along(gradients[name], parts) for name, parts in self.directions.items()], axis=0)

    def _run(self, arrays: Arrays, tap: Tap) -> None:
        parameters, size = dict[str, Any](arrays), len(self.each.targets)
        for name, parts in self.directions.items():
            parameters[name] = Leaning(arrays[name], tuple(np.repeat(part, size, axis=0) for part in parts))
        tap("together", np.array(self.each.of_batches(parameters, COUNT)))
