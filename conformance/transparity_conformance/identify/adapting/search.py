"""Search for the tensor of each parameter: with the right tensor and layout, the reference computes a value of the
port. The search follows the order of the forward pass, and keeps the parameters that are already matched. If no layout
is right, the search adds known faults to the reference."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import in_every_layer, in_layer
from transparity_conformance.catalogue import hypotheses as fault_hypotheses
from transparity_conformance.catalogue.fault import Hypothesis, WalkState
from transparity_conformance.catalogue.sites import stream
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.walk import Impossible, under_hypothesis, walk
from transparity_conformance.identify.adapting.hypotheses import (
    Pool,
    as_in_the_first_layer,
    hypotheses_of,
    templates_of,
    texts_of,
)
from transparity_conformance.identify.adapting.layouts import biases
from transparity_conformance.identify.adapting.places import Place, places_of
from transparity_conformance.identify.alignment.heard import AlignedRow
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, probe_parameters
from transparity_conformance.oracle.undetermined import split
from transparity_conformance.running.adapters.notation import ABSENT, Lines, at_layer

SCORES = ("scores", "weights", "scores in order")
"""The comparisons that identify queries and keys, the most certain first. Only the weights agree if the port shifts the
scores, and only the scores agree if the port's mask is wrong."""


@dataclass
class FoundAdapter:
    lines: Lines = field(default_factory=dict)
    zero: Lines = field(default_factory=dict)
    """Lines of biases that only the port has, which must be 0."""
    unused: tuple[str, ...] = ()
    unsettled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each parameter that was not found, the lines that select enough unused elements."""
    lost_at: str | None = None
    """The first activation without a match, if any."""
    faults: tuple[Hypothesis, ...] = ()


def search(
    config: TransformerConfig, tensors: Mapping[str, np.ndarray], inputs: Arrays, candidates: Recorded, clock: Clock
) -> FoundAdapter:
    """Find the reference's parameters in a port's tensors, which contain random numbers. `inputs` is one row without
    padding. `candidates` contains all values that the port computed from this row."""
    found, own = FoundAdapter(), parameter_shapes(config)
    seeker = _Seeker(config, Pool(tensors, config), inputs, candidates, clock)
    own_row = Probe("adapting", "row", "", seeker.config, probe_parameters(seeker.config), inputs)
    for place in places_of(own_row):
        settled: Lines | None = None
        if found.lost_at is None:
            try:
                settled = seeker.settled(place, found.lines)
            except OutOfTime:
                found.lost_at = f"{place.tap} within the limits of the search"
            if settled is None:
                found.lost_at = found.lost_at or place.tap
        if settled is None:
            found.unsettled |= {name: seeker.fitting(name) for name in place.parameters if name in own}
        found.lines |= settled or {}
    found.unsettled |= {name: seeker.fitting(name) for name in own if name not in found.lines | found.unsettled}
    for name in unlike_the_first(found.lines, found.lost_at, seeker.pool):
        del found.lines[name]
        found.unsettled[name] = seeker.fitting(name)
    theirs = {name: text for name, text in found.lines.items() if name not in own}
    found.zero = _joined({name: text for name, text in theirs.items() if text != ABSENT}, Pool(tensors, config))
    found.lines = {name: text for name, text in found.lines.items() if name not in theirs}
    found.unused = tuple(name for name, taken in seeker.pool.taken.items() if not taken.all())
    found.faults = seeker.reference.faults
    return found


def unlike_the_first(lines: Lines, lost_at: str | None, pool: Pool) -> list[str]:
    """Return the parameters of the failed layer whose lines differ from the lines of the first layer."""
    stack, layer, _ = in_layer(lost_at or "") or ("", 0, "")
    here = [name for name in lines if layer and name.startswith(f"{stack}.layers.{layer}.")]
    first = {name: templates_of(lines[in_every_layer(name).replace("{i}", "0")], pool) for name in here}
    return [name for name in here if lines[name] not in [at_layer(each, layer) for each in first[name]]]


def _joined(zero: Lines, pool: Pool) -> Lines:
    for text in zero.values():
        pool.take(text)
    names = {text: pool.selection(text).names for text in zero.values()}
    whole = {text: found[0] for text, found in names.items() if len(found) == 1 and pool.taken[found[0]].all()}
    return {name: whole.get(text, text) for name, text in zero.items()}


class Reference:
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
        trial = AlignedRow("adapting", "row", "one row without padding", self.config, self.known | values, self.inputs)
        recorded = {name: value for name, value in self.taps.items() if name.endswith("output")}
        return dict(walk(trial, recorded, (*self.faults, *faults), until=tap))

    def settle(self, values: Mapping[str, np.ndarray], tap: str, faults: Sequence[Hypothesis] = ()) -> None:
        self.known |= values
        self.faults += tuple(faults)
        self.taps |= self.computed({}, tap)

    def rank(self, values: Arrays, tap: str, best: int, faults: Sequence[Hypothesis] = ()) -> int:
        """Return 0 if `tap`, computed with `values`, is among the port's values. For scores, return the index in
        `SCORES` of the first comparison that agrees. Return `best` if the rank would not be less."""
        if not tap.endswith(".scores"):
            is_last = self.config.is_pooled and tap == f"{self.config.stacks[-1]}.output"
            shown = (tap, "pooled") if is_last else (tap,)
            return 0 if any(self._is_heard(self.computed(values, each, faults), each) for each in shown) else best
        weights = f"{tap.removesuffix('scores')}weights"
        taps = self.computed(values, weights, faults)
        match, are_weights = self.candidates.nearest(taps[tap]), self._is_heard(taps, weights)
        in_order = match is not None and match.layout.order.index(2) < match.layout.order.index(3)
        ways = (match is not None and are_weights, are_weights, in_order)
        return next((number for number, is_so in enumerate(ways[:best]) if is_so), best)

    def _is_heard(self, taps: Arrays, tap: str) -> bool:
        if self.candidates.nearest(taps[tap]) is not None:
            return True
        residual = self._residual(self.taps | taps, tap)
        return residual is not None and self.candidates.nearest(taps[tap] + residual) is not None

    def _residual(self, taps: Arrays, tap: str) -> np.ndarray | None:
        """Return the residual to which the output `tap` is added, if any."""
        is_added = self.config.norm_position not in ("sandwich", "post-branch")
        if not (is_added and tap.endswith(("attention.output", "feed_forward.output"))):
            return None
        in_turn = dataclasses.replace(self.config, branches="sequential")  # ports add parallel branches one by one
        return stream(WalkState(in_turn, {}, self.inputs, taps), *split(tap)[:2])


class _Seeker:
    def __init__(
        self, config: TransformerConfig, pool: Pool, inputs: Arrays, candidates: Recorded, clock: Clock
    ) -> None:
        names = ("norm_bias", "qkv_bias", "output_bias", "feed_forward_bias", "head_bias", "patch_bias")
        # Search for biases even if the configuration has none, because the port's biases may be 0.
        fields: dict[str, Any] = dict.fromkeys(names, True) | ({"qkv_bias": False} if config.kv_lora_rank else {})
        self.config, self.pool, self.clock = dataclasses.replace(config, **fields), pool, clock
        self.reference = Reference(self.config, inputs, candidates)

    def settled(self, place: Place, lines: Lines) -> Lines | None:
        for hypothesis in as_in_the_first_layer(place, lines, self.pool):
            for fault in (None, *(each for each in self._faults(place) if self._is_known(each))):
                faults = () if fault is None else (fault,)
                if not self.pool.overlap(hypothesis.values()) and self._is_right(hypothesis, place.tap, faults):
                    return self._kept(hypothesis, place.tap, faults)
        best, by = None, len(SCORES)
        for hypothesis in self._hypotheses(place):
            if (found := self._rank(hypothesis, place.tap, by)) < by:
                best, by = hypothesis, found
            if by == 0:
                break
        if best is not None:
            return self._kept(self._completed(best, place, by), place.tap)
        for hypothesis in self._hypotheses(place, passes=1):
            for fault in self._faults(place):
                if self._is_right(hypothesis, place.tap, (fault,)) and self._all_matter(hypothesis, place.tap, fault):
                    return self._kept(hypothesis, place.tap, (fault,))
        return None

    def _all_matter(self, lines: Lines, tap: str, fault: Hypothesis) -> bool:
        """Return whether every parameter affects `tap`; a parameter without effect would fit any tensor."""
        values = self._values(lines)
        computed = self.reference.computed(values, tap, (fault,))[tap]
        names = [name for name, text in lines.items() if text != ABSENT]
        others = [self.reference.computed({**values, name: 1.5 * values[name] + 1}, tap, (fault,)) for name in names]
        return not any(np.array_equal(computed, other[tap], equal_nan=True) for other in others)

    def _rank(self, lines: Lines, tap: str, best: int, faults: Sequence[Hypothesis] = ()) -> int:
        self.clock.check()
        with contextlib.suppress(Impossible), under_hypothesis():
            return self.reference.rank(self._values(lines), tap, best, faults)
        return best

    def fitting(self, parameter: str) -> tuple[str, ...]:
        for shapes in self.pool.free(parameter):
            texts = [text for text in texts_of(parameter, self.config, shapes) if text != ABSENT]
            if left := [text for text in texts if not self.pool.flags(text).any()]:
                return tuple(left)
        return ()

    def _hypotheses(self, place: Place, passes: int | None = None) -> Iterator[Lines]:
        pools = itertools.islice(self.pool.free(place.tap), passes)
        heard: dict[tuple[str, ...], bool] = {}

        def is_right(lines: Lines, tap: str) -> bool:
            key = (tap, *lines.values())
            if key not in heard:
                heard[key] = self._is_right(lines, tap)
            return heard[key]

        tried = set()
        for hypothesis in hypotheses_of(place, self.config, self.pool, pools, is_right):
            key = tuple(hypothesis.values())
            if key not in tried and not self.pool.overlap(key):
                yield hypothesis
            tried.add(key)

    def _is_right(self, lines: Lines, tap: str, faults: Sequence[Hypothesis] = (), by: int = 0) -> bool:
        return self._rank(lines, tap, by + 1, faults) <= by

    def _values(self, lines: Lines) -> Arrays:
        shapes = self.reference.shapes
        return {name: self.pool.numbers(text, shapes[name]) for name, text in lines.items()}

    def _completed(self, lines: Lines, place: Place, by: int) -> Lines:
        """Add biases that the first search missed, because the port may add them in later operations."""
        *_, every = self.pool.free(place.tap)
        for name in [name for name, text in lines.items() if text == ABSENT]:
            seen = next((each.tap for each in place.maps if name in each.parameters), place.tap)
            for text in biases(name, self.config, every):
                more = {**lines, name: text}
                if self.pool.overlap(more.values()):
                    continue
                if self._is_right(more, seen) and self._is_right(more, place.tap, by=by):
                    lines = more
                    break
        return lines

    def _kept(self, lines: Lines, tap: str, faults: Sequence[Hypothesis] = ()) -> Lines:
        for text in lines.values():
            self.pool.take(text)
        self.reference.settle(self._values(lines), tap, faults)
        return lines

    def _faults(self, place: Place) -> Iterator[Hypothesis]:
        every = fault_hypotheses(self.config, list(place.taps))
        faults = (each for each in every if not each.fault.alter and not each.fault.taken_from)
        return iter(sorted(faults, key=lambda each: (not self._is_known(each), -len(each.sites))))

    def _is_known(self, fault: Hypothesis) -> bool:
        return fault.fault.id in {each.fault.id for each in self.reference.faults}
