"""Enumerate the possible adapter lines of a parameter: a tensor of the port, possibly sliced, viewed or permuted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity.taps import in_every_layer, in_layer
from transparity_conformance.identify.adapting.layouts import biases, rotations, weights
from transparity_conformance.identify.adapting.places import Map, Place
from transparity_conformance.running.adapters.notation import (
    ABSENT,
    NUMBER,
    Lines,
    Selection,
    Shapes,
    at_layer,
    parted,
    select,
    sizes_of,
    stacked,
    templates,
)


class Pool:
    """The tensors of a port, with a mark on each element that already belongs to a parameter."""

    def __init__(self, tensors: Mapping[str, np.ndarray], config: TransformerConfig) -> None:
        self.config, self.tensors, self.sizes = config, tensors, sizes_of(config)
        self.shapes = {name: value.shape for name, value in tensors.items()}
        self.taken = {name: np.zeros(value.size, bool) for name, value in tensors.items()}
        self.counts = {config.num_heads, config.key_value_heads} - {1}
        self._selected: dict[str, Selection] = {}

    def selection(self, text: str) -> Selection:
        if text not in self._selected:
            self._selected[text] = select(text, self.shapes, self.sizes)
        return self._selected[text]

    def numbers(self, text: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return the elements that an adapter's line selects, in float64."""
        if text == ABSENT:
            return np.zeros(shape)
        return self.selection(text).read(self.tensors).reshape(shape).astype(np.float64)

    def flags(self, text: str) -> np.ndarray:
        return np.zeros(0, bool) if text == ABSENT else self.selection(text).read(self.taken)

    def take(self, text: str) -> None:
        if text != ABSENT:
            self.selection(text).write(self.taken, True)

    def overlap(self, texts: Iterable[str]) -> bool:
        """Return whether two lines select the same element, or a line selects an element of an earlier parameter."""
        before = dict(self.taken)
        try:
            for text in texts:
                if self.flags(text).any():
                    return True
                self.take(text)
            return False
        finally:
            self.taken = before

    def free(self, ours: str) -> Iterator[Shapes]:
        """Yield groups of tensors that may contain the parameters of `ours`: first the layer's tensors, then all."""
        left = {name: shape for name, shape in self.shapes.items() if not self.taken[name].all()}
        place = in_layer(ours)
        near = [name for name in left if not place or place[1] in map(int, NUMBER.findall(name))]
        for names in dict.fromkeys(map(tuple, (near, left))):
            yield self._with_stacks({name: left[name] for name in names}, place)

    def _with_stacks(self, shapes: Shapes, place: tuple[str, int, str] | None) -> Shapes:
        found = dict(shapes)
        for name in shapes:
            for match in NUMBER.finditer(name):
                several = f"{name[: match.start()]}{{n}}{name[match.end() :]}"
                if several not in found and len(names := stacked(several, self.shapes)) in self.counts:
                    found[several] = (len(names), *self.shapes[names[0]])
        for name, shape in self.shapes.items():
            layers = self.config.stack_num_layers(place[0]) if place else None
            if place and len(shape) > 1 and shape[0] == layers and not NUMBER.search(name):
                found[f"{name}[{place[1]}]"] = shape[1:]
        return found


FLAT = re.compile(r"^\.view\(-1(, [^()]*)?\)")
"""The step that views a convolution kernel as a matrix or a vector."""

IsRight = Callable[[Lines, str], bool]


def hypotheses_of(
    place: Place, config: TransformerConfig, pool: Pool, pools: Iterable[Shapes], is_right: IsRight
) -> Iterator[Lines]:
    """Yield every combination of adapter lines for the parameters of `place`. `pools` are groups of tensors with unused
    elements. `is_right(lines, tap)` returns whether the reference, with these lines, computes some value of the port at
    `tap`."""
    turns = rotations(config) if place.tap.endswith("self_attention.scores") else [""]
    for shapes, in_one in itertools.product(pools, (True, False)):
        ways = [_ways(each, config, pool, shapes, is_right, in_one) for each in place.maps]
        for turn, way in itertools.product(turns, itertools.product(*ways)):
            joined: Lines = {name: text for each in way for name, text in each.items()}
            yield {name: turned(text, turn, name) for name, text in joined.items()}


def texts_of(parameter: str, config: TransformerConfig, shapes: Shapes) -> list[str]:
    if len(parameter_shapes(config)[parameter]) > 1:
        return list(weights(parameter, config, shapes))
    return [*biases(parameter, config, shapes), *[ABSENT] * parameter.endswith(".bias")]


def turned(text: str, steps: str, name: str) -> str:
    """Append `steps`, which reorder rows for rotary positions, to the line of a query, a key or a norm's gain."""
    if text == ABSENT or name.endswith("relative_bias.weight"):
        return text
    return text + steps.format("1" if "_norm." in name else "N" if ".query." in name else "K")


def as_in_the_first_layer(place: Place, lines: Lines, pool: Pool) -> Iterator[Lines]:
    _, layer, _ = in_layer(place.tap) or ("", 0, "")
    first = [in_every_layer(name).replace("{i}", "0") for name in place.parameters] if layer else []
    if not first or not all(name in lines for name in first):
        return
    for chosen in itertools.product(*(templates_of(lines[name], pool) for name in first)):
        texts = [at_layer(template, layer) for template in chosen]
        names = [parted(text, pool.shapes)[0] for text in texts if text != ABSENT]
        if all(name in pool.shapes or "{n}" in name for name in names):
            yield dict(zip(place.parameters, texts, strict=True))


def templates_of(text: str, pool: Pool) -> list[str]:
    return [ABSENT] if text == ABSENT else list(templates(text, 0, pool.shapes))


def _ways(
    each: Map, config: TransformerConfig, pool: Pool, shapes: Shapes, is_right: IsRight, in_one: bool
) -> list[Lines]:
    ways: list[Lines] = []
    for texts in itertools.product(*(texts_of(name, config, shapes) for name in each.parameters)):
        parts = [parted(text, pool.shapes) for text in texts if text != ABSENT]
        modules = {name.rpartition(".")[0] for name, _ in parts} - {""}
        cuts = {FLAT.sub("", steps.removeprefix(".T")) for _, steps in parts if "[" in steps}
        if len(cuts) <= 1 and (not in_one or len(modules) <= 1):  # split a fused bias like its weight
            ways.append(dict(zip(each.parameters, texts, strict=True)))
    return [way for way in ways if is_right(way, each.tap)] if each.is_shown else ways
