"""The reference with the parameters matched so far, compared with the values of the port."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.catalogue.fault import Hypothesis, WalkState
from transparity_conformance.catalogue.sites import stream
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.identify.alignment.heard import AlignedRow
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import split

SCORES = ("scores", "weights", "scores in order")
"""The comparisons that identify queries and keys, the most certain first.

1. Scores and weights: swapped queries and keys give transposed scores, but other weights.
2. Only attention weights: a port may shift its scores.
3. Only scores, with their axes in order: a port may have a wrong mask.
"""


class Reference:
    """The reference, run on the port's tokens.

    Args:
        inputs: one row of tokens without padding.
        candidates: all values that the port computed from the tokens.
    """

    def __init__(self, config: TransformerConfig, inputs: Arrays, candidates: Recorded) -> None:
        self.config, self.inputs, self.candidates = config, inputs, candidates
        self.shapes = parameter_shapes(config)
        self.known: Arrays = {
            name: np.broadcast_to(np.float64(name.endswith("running_var")), shape)
            for name, shape in self.shapes.items()
        }
        self.taps: Arrays = {}
        self.faults: tuple[Hypothesis, ...] = ()

    def computed(self, values: Arrays, tap: str, faults: Sequence[Hypothesis] = ()) -> Arrays:
        """Return the taps up to `tap`, with `values` and `faults` added to the known parameters and faults."""
        trial = AlignedRow("adapting", "row", "one row without padding", self.config, self.known | values, self.inputs)
        recorded = {name: value for name, value in self.taps.items() if name.endswith("output")}
        return dict(walk(trial, recorded, (*self.faults, *faults), until=tap))

    def settle(self, values: Mapping[str, np.ndarray], tap: str, faults: Sequence[Hypothesis] = ()) -> None:
        """Store matched parameters, and the faults that the match requires."""
        self.known |= values
        self.faults += tuple(faults)
        self.taps |= self.computed({}, tap)

    def rank(self, values: Arrays, tap: str, best: int, faults: Sequence[Hypothesis] = ()) -> int:
        """Return 0 if the reference with `values` computes a value of the port at `tap`; otherwise `best`.

        For scores, return the index of the first comparison before `best` in `SCORES` that succeeds, or else `best`.
        """
        if not tap.endswith(".scores"):
            return 0 if self._is_heard(self.computed(values, tap, faults), tap) else best
        weights = f"{tap.removesuffix('scores')}weights"
        taps = self.computed(values, weights, faults)
        match, are_weights = self.candidates.nearest(taps[tap]), self._is_heard(taps, weights)
        in_order = match is not None and match.layout.order.index(2) < match.layout.order.index(3)
        ways = (match is not None and are_weights, are_weights, in_order)
        return next((number for number, is_so in enumerate(ways[:best]) if is_so), best)

    def _is_heard(self, taps: Arrays, tap: str) -> bool:
        """Return whether the port computed the tap's value, or the sum of this value and the residual."""
        if self.candidates.nearest(taps[tap]) is not None:
            return True
        residual = self._residual(self.taps | taps, tap)
        return residual is not None and self.candidates.nearest(taps[tap] + residual) is not None

    def _residual(self, taps: Arrays, tap: str) -> np.ndarray | None:
        """Return the residual that is added to the sublayer's output `tap`; None for other taps."""
        is_added = self.config.norm_position not in ("sandwich", "post-branch")
        if not (is_added and tap.endswith(("attention.output", "feed_forward.output"))):
            return None
        in_turn = dataclasses.replace(self.config, branches="sequential")  # ports add parallel branches one by one
        residual: np.ndarray = stream(WalkState(in_turn, {}, self.inputs, taps), *split(tap)[:2])
        return residual
