"""Which tensor is which parameter: a hypothesis is right if with it the reference computes what the port computed.

The port was run once on weights that are all different. Place by place, in the order of the forward pass, the
reference is run with the port's own tensors as its parameters, in every layout in which they may be kept; the right one
is that whose activation is among the port's values. So hypotheses add up and do not multiply, and what one place has
settled is given in the next. Where none is right, each fault of the catalogue is put into the reference, too: a port
that is wrong is matched all the same.
"""

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
from transparity_conformance.catalogue import hypotheses as fault_hypotheses
from transparity_conformance.catalogue.fault import Hypothesis
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.walk import Impossible, under_hypothesis
from transparity_conformance.identify.adapting.hypotheses import (
    as_in_the_first_layer,
    hypotheses_of,
    templates_of,
    texts_of,
)
from transparity_conformance.identify.adapting.layouts import biases
from transparity_conformance.identify.adapting.places import Place, places_of
from transparity_conformance.identify.adapting.pool import Pool
from transparity_conformance.identify.adapting.reference import SCORES, Reference
from transparity_conformance.matching.recorded import Recorded
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.running.adapters.notation import ABSENT, LAYER, Lines, at_layer


@dataclass
class FoundAdapter:
    """What was settled, and what was not."""

    lines: Lines = field(default_factory=dict)
    zero: Lines = field(default_factory=dict)
    """Lines of the port's own biases, which ours has not: they have to be 0."""
    unused: tuple[str, ...] = ()
    """Tensors in which nothing is a parameter, or not all."""
    unsettled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters that no hypothesis explains, with the lines that fit by their shapes."""
    lost_at: str | None = None
    """The tap that was not found among the port's values under any hypothesis; None: all were."""
    faults: tuple[Hypothesis, ...] = ()
    """Faults of the port, without which some of its values would not have been found."""


def search(
    config: TransformerConfig, tensors: Mapping[str, np.ndarray], inputs: Arrays, candidates: Recorded, clock: Clock
) -> FoundAdapter:
    """Match the tensors of a port with our parameters.

    Args:
        config: the configuration that the port has.
        tensors: the port's tensors, with numbers that are all different.
        inputs: one row of tokens without padding.
        candidates: every value that the port computed from them; the last is its answer.
        clock: the time for the search.
    """
    found, own = FoundAdapter(), parameter_shapes(config)
    seeker = _Seeker(config, Pool(tensors, config), inputs, candidates, clock)
    for place in places_of(seeker.config):
        settled: Lines | None = None
        if found.lost_at is None:
            try:
                settled = seeker.settled(place, found.lines)
            except OutOfTime:
                found.lost_at = f"{place.tap} (in the time that --budget gives)"
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
    """The parameters of the layer in which the search was lost whose lines are not those of the first layer: a port of
    fewer layers has its last norm there."""
    match = LAYER.match(lost_at or "")
    if match is None or match["layer"] == "0":
        return []
    layer = int(match["layer"])
    found = []
    for name in [name for name in lines if name.startswith(match[0])]:
        first = lines[LAYER.sub(r"\g<stack>.layers.0.", name)]
        if lines[name] not in [
            *[ABSENT] * (first == ABSENT),
            *(at_layer(each, layer) for each in templates_of(first, pool)),
        ]:
            found.append(name)
    return found


def _joined(zero: Lines, pool: Pool) -> Lines:
    """The lines of what is 0: of a tensor that is 0 as a whole, its name."""
    for text in zero.values():
        pool.take(text)
    names = {text: pool.selection(text).names for text in zero.values()}
    whole = {text: found[0] for text, found in names.items() if len(found) == 1 and pool.taken[found[0]].all()}
    return {name: whole.get(text, text) for name, text in zero.items()}


def with_biases(config: TransformerConfig) -> TransformerConfig:
    """The configuration with every bias, for a port may have some that are 0; maps to and from a latent have none."""
    names = ("norm_bias", "qkv_bias", "output_bias", "feed_forward_bias", "head_bias", "patch_bias")
    fields: dict[str, Any] = dict.fromkeys(names, True) | ({"qkv_bias": False} if config.kv_lora_rank else {})
    return dataclasses.replace(config, **fields)


class _Seeker:
    """The port's tensors, and the reference with those that are known."""

    def __init__(
        self, config: TransformerConfig, pool: Pool, inputs: Arrays, candidates: Recorded, clock: Clock
    ) -> None:
        self.config, self.pool, self.clock = with_biases(config), pool, clock
        self.reference = Reference(self.config, inputs, candidates)

    def settled(self, place: Place, lines: Lines) -> Lines | None:
        """The lines of a place; None if no hypothesis is right."""
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
        """Return whether, with a fault, every parameter changes what is computed: else its line was not found."""
        values = self._values(lines)
        computed = self.reference.computed(values, tap, (fault,))[tap]
        names = [name for name, text in lines.items() if text != ABSENT]
        others = [self.reference.computed({**values, name: 1.5 * values[name] + 1}, tap, (fault,)) for name in names]
        return not any(np.array_equal(computed, other[tap], equal_nan=True) for other in others)

    def _rank(self, lines: Lines, tap: str, best: int, faults: Sequence[Hypothesis] = ()) -> int:
        """The surest way in which lines are right, if it is better than `best`; `best` else."""
        self.clock.check()
        with contextlib.suppress(Impossible), under_hypothesis():
            return self.reference.rank(self._values(lines), tap, best, faults)
        return best

    def fitting(self, parameter: str) -> tuple[str, ...]:
        """The lines that a parameter may have by its shape."""
        for shapes in self.pool.free(*layer_of(parameter, self.config)):
            texts = [text for text in texts_of(parameter, self.config, shapes) if text != ABSENT]
            if left := [text for text in texts if not self.pool.flags(text).any()]:
                return tuple(left)
        return ()

    def _hypotheses(self, place: Place, passes: int | None = None) -> Iterator[Lines]:
        """The hypotheses that are possible; with `passes`, those of the likeliest tensors alone."""
        pools = itertools.islice(self.pool.free(*layer_of(place.tap, self.config)), passes)
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
        """The lines, with a bias of the port wherever one is right, too: without it, the value is one on the way."""
        *_, every = self.pool.free(*layer_of(place.tap, self.config))
        for name in [name for name, text in lines.items() if text == ABSENT]:
            seen = next((each.tap for each in place.maps if name in each.parameters and each.tap), place.tap)
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
        """Every fault that a port can have at a place, but those that exchange parameters; first those it has."""
        every = fault_hypotheses(self.config, list(place.taps))
        faults = (each for each in every if not each.fault.alter and not each.fault.taken_from)
        return iter(sorted(faults, key=lambda each: (not self._is_known(each), -len(each.sites))))

    def _is_known(self, fault: Hypothesis) -> bool:
        return fault.fault.id in {each.fault.id for each in self.reference.faults}


def layer_of(name: str, config: TransformerConfig) -> tuple[int | None, int, str]:
    """The number of the layer that a name is of, the number of all layers of its stack, and the stack."""
    match = LAYER.match(name)
    if match is None:
        stack = name.partition(".")[0]
        return None, 0, stack if stack in config.stacks else ""
    return int(match["layer"]), config.stack_num_layers(match["stack"]), match["stack"]
