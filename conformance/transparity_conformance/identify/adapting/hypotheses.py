"""Yield the lines that some parameters may have in an adapter, the most likely lines first."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.identify.adapting.layouts import biases, rotations, weights
from transparity_conformance.identify.adapting.places import Map, Place
from transparity_conformance.identify.adapting.pool import Pool
from transparity_conformance.running.adapters.notation import ABSENT, LAYER, Lines, Shapes, at_layer, parted, templates

FLAT = re.compile(r"^\.view\(-1(, [^()]*)?\)")
"""The steps that turn a kernel into a matrix or a vector, before its rows are cut."""

IsRight = Callable[[Lines, str], bool]


def hypotheses_of(
    place: Place, config: TransformerConfig, pool: Pool, pools: Iterable[Shapes], is_right: IsRight
) -> Iterator[Lines]:
    """Yield the lines that the parameters of a place may have.

    Args:
        place: parameters that are matched together.
        config: the configuration, with all biases enabled.
        pool: the port's tensors.
        pools: the groups of unmatched tensors, most likely first.
        is_right: returns whether the reference with these lines computes the port's value at a tap.
    """
    turns = rotations(config) if place.tap.endswith("self_attention.scores") else [""]
    for shapes, in_one in itertools.product(pools, (True, False)):
        ways = [_ways(each, config, pool, shapes, is_right, in_one) for each in place.maps]
        for turn, way in itertools.product(turns, itertools.product(*ways)):
            joined: Lines = {name: text for each in way for name, text in each.items()}
            yield {name: turned(text, turn, name) for name, text in joined.items()}


def texts_of(parameter: str, config: TransformerConfig, shapes: Shapes) -> list[str]:
    """Return the lines that fit the shape of a parameter; a bias may be absent."""
    if len(parameter_shapes(config)[parameter]) > 1:
        return list(weights(parameter, config, shapes))
    return [*biases(parameter, config, shapes), *[ABSENT] * parameter.endswith(".bias")]


def turned(text: str, steps: str, name: str) -> str:
    """Append the steps that reorder the rows of a query or key, or of its gain, for rotation."""
    if text == ABSENT or name.endswith("relative_bias.weight"):
        return text
    return text + steps.format("1" if "_norm." in name else "N" if ".query." in name else "K")


def as_in_the_first_layer(place: Place, lines: Lines, pool: Pool) -> Iterator[Lines]:
    """Yield the lines of the first layer's parameters, with the number of this layer."""
    match = LAYER.match(place.tap)
    if match is None or match["layer"] == "0":
        return
    first = [LAYER.sub(r"\g<stack>.layers.0.", name) for name in place.parameters]
    if not all(name in lines for name in first):
        return
    for chosen in itertools.product(*(templates_of(lines[name], pool) for name in first)):
        texts = [at_layer(template, int(match["layer"])) for template in chosen]
        if all(_exists(text, pool) for text in texts):
            yield dict(zip(place.parameters, texts, strict=True))


def templates_of(text: str, pool: Pool) -> list[str]:
    """Return the possible lines for all layers, given the line of the first layer."""
    return [ABSENT] if text == ABSENT else list(templates(text, 0, pool.shapes))


def _exists(text: str, pool: Pool) -> bool:
    if text == ABSENT:
        return True
    name, _ = parted(text, pool.shapes)
    return name in pool.shapes or "{n}" in name


def _ways(
    each: Map, config: TransformerConfig, pool: Pool, shapes: Shapes, is_right: IsRight, in_one: bool
) -> list[Lines]:
    """Return the possible lines of a map's parameters, except lines that the map's own tap contradicts.

    Args:
        in_one: whether the names of all tensors must belong to one module.
    """
    ways = [
        dict(zip(each.parameters, texts, strict=True))
        for texts in itertools.product(*(texts_of(name, config, shapes) for name in each.parameters))
        if _are_cut_alike(texts, pool) and (not in_one or len({_module(text, pool) for text in texts} - {ABSENT}) <= 1)
    ]
    if not each.tap.endswith((".query", ".key", ".value")):
        return ways
    return [way for way in ways if is_right(way, each.tap)]


def _module(text: str, pool: Pool) -> str:
    """Return the name of a line's tensor without its last part."""
    return text if text == ABSENT else parted(text, pool.shapes)[0].rpartition(".")[0]


def _are_cut_alike(texts: Iterable[str], pool: Pool) -> bool:
    """Return whether a fused weight and a fused bias are cut in the same way."""
    steps = (parted(text, pool.shapes)[1] for text in texts if text != ABSENT)
    cuts = {FLAT.sub("", each.removeprefix(".T")) for each in steps}
    return len({cut for cut in cuts if "[" in cut}) <= 1
