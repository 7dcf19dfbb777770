"""Names of taps in few words: `{i}` for the number of a layer, and ranges of layers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping

Shape = tuple[int, ...]

LAYER = re.compile(r"(encoder|decoder)\.layers\.(\d+)\.(.+)")


def collapsed(shapes: Mapping[str, Shape]) -> dict[str, list[int]]:
    """The shapes with one name for a tap of all layers, `decoder.layers.{i}.output`; `i` counts from 0.

    Raises `AssertionError` where layers differ, which no configuration has.
    """
    found: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        match = LAYER.fullmatch(name)
        pattern = f"{match[1]}.layers.{{i}}.{match[3]}" if match else name
        assert found.setdefault(pattern, list(shape)) == list(shape), name
    return found


def in_ranges(names: Collection[str]) -> Iterator[str]:
    """Yield all names, a line for layers next to each other that have the same ones, and a line for the rest."""
    by_layer: dict[tuple[str, int], list[str]] = {}
    rest = []
    for name in names:
        if match := LAYER.fullmatch(name):
            by_layer.setdefault((match[1], int(match[2])), []).append(match[3])
        else:
            rest.append(name)
    runs: list[tuple[str, int, int, list[str]]] = []
    for (stack, layer), taps in by_layer.items():
        if runs and runs[-1][0] == stack and runs[-1][2] == layer - 1 and runs[-1][3] == taps:
            runs[-1] = (stack, runs[-1][1], layer, taps)
        else:
            runs.append((stack, layer, layer, taps))
    for stack, first, last, taps in runs:
        numbers = f"{first}" if first == last else f"{first} to {last}"
        yield f"{stack}.layers.{numbers}: {', '.join(taps)}"
    if rest:
        yield ", ".join(rest)
