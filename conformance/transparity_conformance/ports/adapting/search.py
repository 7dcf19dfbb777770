"""Which tensor is which parameter: a hypothesis is right if with it the reference computes what the port computed.

The port was run once on weights that are all different. Place by place, in the order of the forward pass, the
reference is run with the port's own tensors as its parameters, in every layout in which they may be kept; the right one
is that whose activation is among the port's values. So hypotheses add up and do not multiply, and what one place has
settled is given in the next.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.diagnosis.search.clock import Clock, OutOfTime
from transparity_conformance.diagnosis.walk import walk
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe
from transparity_conformance.ports.adapting.layouts import biases, rotations, weights
from transparity_conformance.ports.adapting.notation import ABSENT, parted
from transparity_conformance.ports.adapting.numbered import LAYER, Lines, at_layer, templates
from transparity_conformance.ports.adapting.places import Map, Place, places_of
from transparity_conformance.ports.adapting.pool import Pool
from transparity_conformance.ports.alignment.values.candidates import Candidates

BIASES = ("qkv_bias", "output_bias", "feed_forward_bias", "head_bias")


@dataclass
class Found:
    """What was settled, and what was not."""

    lines: Lines = field(default_factory=dict)
    unsettled: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Parameters that no hypothesis explains, with the lines that fit by their shapes."""
    zero: Lines = field(default_factory=dict)
    """Lines of the port's own biases, which ours has not: they have to be 0."""
    unused: tuple[str, ...] = ()
    """Tensors in which nothing is a parameter, or not all."""
    lost_at: str | None = None
    """The tap that was not found among the port's values under any hypothesis; None: all were."""


class Trial(Probe):
    """One row without padding, and parameters in float64, of which those that are not known yet are 0."""

    keeps_exact = True

    @functools.cached_property
    def exact(self) -> Arrays:
        return self.parameters


def search(
    config: TransformerConfig, tensors: Mapping[str, np.ndarray], inputs: Arrays, candidates: Candidates, clock: Clock
) -> Found:
    """Match the tensors of a port with our parameters.

    Args:
        config: the configuration that the port has.
        tensors: the port's tensors, with numbers that are all different.
        inputs: one row of tokens without padding.
        candidates: every value that the port computed from them; the last is its answer.
        clock: the time for the search.
    """
    found = Found()
    seeker = _Seeker(config, Pool(tensors, config), inputs, candidates, clock)
    for place in places_of(seeker.config):
        settled = None
        if found.lost_at is None:
            try:
                settled = seeker.settled(place, found.lines)
            except OutOfTime:
                settled = None
            found.lost_at = place.tap if settled is None else None
        if settled is None:
            found.unsettled |= {name: seeker.fitting(name) for name in place.parameters if name in seeker.own}
        found.lines |= settled or {}
    theirs = {name: text for name, text in found.lines.items() if name not in seeker.own}
    found.zero = {name: text for name, text in theirs.items() if text != ABSENT}
    found.lines = {name: text for name, text in found.lines.items() if name not in theirs}
    found.unused = tuple(name for name, taken in seeker.pool.taken.items() if not taken.all())
    return found


def with_biases(config: TransformerConfig) -> TransformerConfig:
    """The configuration with every bias, for a port may have some that are 0."""
    return dataclasses.replace(config, **dict.fromkeys(BIASES, True))


class _Seeker:
    """The reference with the parameters that are known, and the port's values."""

    def __init__(
        self, config: TransformerConfig, pool: Pool, inputs: Arrays, candidates: Candidates, clock: Clock
    ) -> None:
        self.own = parameter_shapes(config)
        self.config, self.pool, self.inputs = with_biases(config), pool, inputs
        self.candidates, self.clock = candidates, clock
        self.shapes = parameter_shapes(self.config)
        self.known: Arrays = {
            name: np.broadcast_to(np.float64(name.endswith("running_var")), shape)
            for name, shape in self.shapes.items()
        }
        self.taps: Arrays = {}

    def settled(self, place: Place, lines: Lines) -> Lines | None:
        """The lines of a place; None if no hypothesis is right."""
        for hypothesis in self._hypotheses(place, lines):
            self.clock.check()
            if not self.pool.overlap(hypothesis.values()) and self._is_right(hypothesis, place.tap):
                for name, text in hypothesis.items():
                    self.known[name] = self.pool.numbers(text, self.shapes[name])
                    self.pool.take(text)
                self.taps |= self._computed({}, place.tap)
                return hypothesis
        return None

    def fitting(self, parameter: str) -> tuple[str, ...]:
        """The lines that a parameter may have by its shape."""
        layer, layers = self._layer(parameter)
        for shapes in self.pool.free(layer, layers):
            if texts := [
                text for text in self._texts(parameter, shapes) if text != ABSENT and not self.pool.flags(text).any()
            ]:
                return tuple(texts)
        return ()

    def _hypotheses(self, place: Place, lines: Lines) -> Iterator[Lines]:
        yield from self._as_in_other_layers(place, lines)
        layer, layers = self._layer(place.tap)
        for shapes in self.pool.free(layer, layers):
            ways = [self._ways(each, shapes) for each in place.maps]
            for rotation in rotations(self.config) if place.tap.endswith("self_attention.scores") else [""]:
                for way in itertools.product(*ways):
                    joined: Lines = {name: text for each in way for name, text in each.items()}
                    yield {name: self._rotated(text, rotation, name) for name, text in joined.items()}

    def _rotated(self, text: str, steps: str, name: str) -> str:
        """The line with the steps of a rotation for the rows of a query or a key, or for their gains."""
        if text == ABSENT or name.endswith("relative_bias.weight"):
            return text
        return text + steps.format("1" if "_norm." in name else "N" if ".query." in name else "K")

    def _as_in_other_layers(self, place: Place, lines: Lines) -> Iterator[Lines]:
        """Yield the lines that the same place has in the first layer, with the number of this one."""
        layer, _ = self._layer(place.tap)
        if not layer:
            return
        first = {name: LAYER.sub(r"\g<stack>.layers.0.", name) for name in place.parameters}
        if not all(other in lines for other in first.values()):
            return
        every = [self._templates(lines[first[name]]) for name in place.parameters]
        for chosen in itertools.product(*every):
            texts = [at_layer(template, layer) for template in chosen]
            if all(self._is_known(text) for text in texts):
                yield dict(zip(place.parameters, texts, strict=True))

    def _templates(self, text: str) -> list[str]:
        return [ABSENT] if text == ABSENT else list(templates(text, 0, self.pool.shapes))

    def _is_known(self, text: str) -> bool:
        if text == ABSENT:
            return True
        name, _ = parted(text, self.pool.shapes)
        return name in self.pool.shapes or "{n}" in name

    def _ways(self, each: Map, shapes: Mapping[str, tuple[int, ...]]) -> list[Lines]:
        """The lines of a map's parameters: those with which its own value is the port's, if it can be seen alone."""
        every = [self._texts(name, shapes) for name in each.parameters]
        ways = [
            dict(zip(each.parameters, texts, strict=True)) for texts in itertools.product(*every) if self._agree(texts)
        ]
        if not each.tap.endswith((".query", ".key", ".value")):
            return ways
        return [way for way in ways if self._is_right(way, each.tap)]

    def _agree(self, texts: Iterable[str]) -> bool:
        """Return whether a weight and a bias that are both fused are cut in the same way."""
        steps = (parted(text, self.pool.shapes)[1] for text in texts if text != ABSENT)
        cuts = {each.removeprefix(".T").removeprefix(".view(-1)") for each in steps}
        return len({cut for cut in cuts if "[" in cut}) <= 1

    def _texts(self, parameter: str, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
        if len(self.shapes[parameter]) > 1:
            return list(weights(parameter, self.config, shapes))
        texts = list(biases(parameter, self.config, shapes))
        if not parameter.endswith(".bias"):
            return texts
        return [*texts, ABSENT] if parameter in self.own else [ABSENT, *texts]

    def _is_right(self, lines: Lines, tap: str) -> bool:
        """Return whether the reference computes at `tap` what the port computed."""
        self.clock.check()
        values = {name: self.pool.numbers(text, self.shapes[name]) for name, text in lines.items()}
        return self.candidates.nearest(self._computed(values, tap)[tap]) is not None

    def _computed(self, values: Arrays, tap: str) -> Arrays:
        """The reference's taps up to `tap`."""
        parameters = self.known | values
        trial = Trial("adapting", "aligned", "one row without padding", self.config, parameters, self.inputs)
        return walk(trial, {name: value for name, value in self.taps.items() if name.endswith("output")}, until=tap)

    def _layer(self, name: str) -> tuple[int | None, int]:
        """The number of the layer that a name is of, and of all layers of its stack."""
        match = LAYER.match(name)
        if match is None:
            return None, 0
        return int(match["layer"]), self.config.stack_num_layers(match["stack"])
