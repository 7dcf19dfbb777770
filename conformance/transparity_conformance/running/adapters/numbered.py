"""Lines for all layers: `{i}` is the number of a layer, on both sides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from transparity_conformance.running.adapters.notation import ABSENT, COUNTED, Shapes, parted

LAYER = re.compile(r"(?P<stack>encoder|decoder)\.layers\.(?P<layer>\d+)\.")

Lines = dict[str, str]
"""By the names of our parameters: where the port keeps them."""


def templates(text: str, layer: int, names: Shapes) -> Iterator[str]:
    """Yield a line for all layers, from that of one: `{i}` is the number of the layer, `{i+1}` the one behind it."""
    name, steps = parted(text, names)
    for match in COUNTED.finditer(name):
        offset = int(match[0]) - layer
        if offset in (0, 1):
            yield f"{name[: match.start()]}{{i{f'+{offset}' if offset else ''}}}{name[match.end() :]}{steps}"
    if steps.startswith(f"[{layer}]"):
        yield f"{name}[{{i}}]{steps.removeprefix(f'[{layer}]')}"


def at_layer(template: str, layer: int) -> str:
    """The line of one layer."""
    return re.sub(r"\{i(?:\+(\d+))?\}", lambda found: str(layer + int(found[1] or 0)), template)


def for_all_layers(lines: Mapping[str, str], names: Shapes) -> Lines:
    """The lines with `{i}` in place of the number of the layer, where those of all layers are the same."""
    found: Lines = {}
    for ours, text in lines.items():
        match = LAYER.match(ours)
        if match is None:
            found[ours] = text
            continue
        before, rest = ours[: match.start("layer")], ours[match.end("layer") :]
        every = {int(layer): lines[f"{before}{layer}{rest}"] for layer in _layers(lines, before, rest)}
        ways = [ABSENT] if text == ABSENT else templates(text, int(match["layer"]), names)
        same = [way for way in ways if all(at_layer(way, layer) == each for layer, each in every.items())]
        found |= {f"{before}{{i}}{rest}": same[0]} if same else {ours: text}
    return found


def _layers(lines: Mapping[str, str], before: str, rest: str) -> list[int]:
    names = (name.removeprefix(before).removesuffix(rest) for name in lines if name.startswith(before))
    return [int(number) for number in names if number.isdigit()]


def line_of(ours: str, lines: Mapping[str, str]) -> str | None:
    """The line of a parameter, its own or that for all layers; None if there is none."""
    if ours in lines:
        return lines[ours]
    match = LAYER.match(ours)
    if match is None:
        return None
    template = lines.get(f"{ours[: match.start('layer')]}{{i}}{ours[match.end('layer') :]}")
    return None if template is None else at_layer(template, int(match["layer"]))
