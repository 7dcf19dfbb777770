"""The notation of an adapter's lines. A line selects the elements of the port's tensors that form one parameter.

    h.{i}.attn.c_attn.weight.T[0:N*H]
    layers.{i}.query_key_value.weight.view(N, 3, H, -1)[:, 0]
    blocks.{i}.heads.{n}.key.weight

A line is a tensor's name, followed by any of `.T`, `.view(…)`, `.permute(…)` and `[…]`, with the same meaning as in
PyTorch. The selected elements are reshaped to the parameter's shape. Sizes are numbers, letters (`SIZES`), and sums,
differences, products and quotients. `{n}` stands for any number: the tensors whose names differ only in this number are
stacked. `{i}` is a layer's number, in the line and in the parameter's name. A line can contain no other code.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.taps import in_every_layer, in_layer
from transparity.text import safe
from transparity_conformance.capabilities.port_calls import PortError

SIZES = {
    "": "D embed_dim, N num_heads, K key_value_heads, H head_dim, F feed_forward_dim",
    "reads_pixels": "C image_channels, P patch_size",
    "reads_frames": "M mel_bins",
    "is_recurrent": "R recurrent_heads, G recurrent_key_heads, S recurrent_key_dim, V recurrent_value_dim",
}
"""The letters for sizes, each with a field or a property of the configuration. A key is a property of the
configuration: if the property is true, an adapter may use the letters of the row. The first row applies to all
models."""

STEPS = re.compile(r"(?P<name>.+?)(?P<steps>(?:\.T|\.view\([^()]*\)|\.permute\([^()]*\)|\[[^\[\]]*\])*)")
STEP = re.compile(r"\.(?P<method>T|view|permute)(?:\((?P<sizes>[^()]*)\))?|\[(?P<index>[^\[\]]*)\]")

ABSENT = ""
"""The line of a parameter that the port lacks; the parameter must be 0."""

NUMBER = re.compile(r"(?<![^.\[])\d+(?![^.\]])")
"""Matches a number between dots or in brackets in a tensor's name."""

COUNTED = re.compile(r"(?<![^._\[])\d+(?![^.\]])")
"""Matches a number that `NUMBER` matches, or a number after an underscore, as in flax's `h_0`."""

Shapes = Mapping[str, tuple[int, ...]]


class AdapterError(PortError):
    """An adapter cannot be read, or does not fit the port or the configuration."""


@dataclass(frozen=True)
class Selection:
    """The elements of a tensor, or of several concatenated tensors, that form a parameter of the reference."""

    names: tuple[str, ...]
    index: np.ndarray | None
    """The indices of the selected elements among all elements of the tensors; None selects all elements in order."""

    def read(self, tensors: Mapping[str, np.ndarray]) -> np.ndarray:
        flat = np.concatenate([np.ravel(tensors[name]) for name in self.names])
        return flat if self.index is None else flat[self.index]

    def write(self, tensors: dict[str, np.ndarray], values: Any) -> None:
        """Replace the selected elements; the mapping `tensors` gets changed copies of the arrays."""
        flat = np.concatenate([np.ravel(tensors[name]) for name in self.names])
        flat[slice(None) if self.index is None else self.index.ravel()] = values
        ends = np.cumsum([tensors[name].size for name in self.names])[:-1]
        for name, part in zip(self.names, np.split(flat, ends), strict=True):
            tensors[name] = part.reshape(tensors[name].shape)


def letters_of(config: TransformerConfig) -> dict[str, str]:
    rows = [row for which, row in SIZES.items() if not which or getattr(config, which)]
    return dict(letter.split() for row in rows for letter in row.split(", "))


def sizes_of(config: TransformerConfig) -> dict[str, int]:
    return {letter: getattr(config, field) for letter, field in letters_of(config).items()}


def select(text: str, shapes: Shapes, sizes: Mapping[str, int]) -> Selection:
    """Parse a line of an adapter, in which a number already replaces `{i}`. `sizes` maps letters to sizes. Raise
    `AdapterError` if the port lacks the tensor, or if a step such as `.view(…)` does not fit the tensor's shape."""
    name, steps = parted(text, shapes)
    names = stacked(name, shapes) if "{n}" in name else (name,)
    if not names or names[0] not in shapes:
        raise AdapterError(f"The adapter's line {shown(text)} names {shown(name)}, but the port has no such tensor.")
    shape = shapes[names[0]] if "{n}" not in name else (len(names), *shapes[names[0]])
    if not steps:
        return Selection(names, None)
    index = np.arange(math.prod(shape)).reshape(shape)
    for step in STEP.finditer(steps):
        try:
            index = _taken(index, step, sizes)
        except (ValueError, IndexError, TypeError) as error:
            reason = safe(str(error)).rstrip(".")
            raise AdapterError(
                f"{step[0]!r} of {shown(text)} does not fit the shape {index.shape}: {reason}."
            ) from None
    return Selection(names, index)


def parted(text: str, names: Shapes) -> tuple[str, str]:
    """Split a line into a tensor's name and the steps after the name. If a name in `names` ends like a step, this step
    belongs to the name."""
    if text in names:
        return text, ""
    found = STEPS.fullmatch(text.strip())
    if found is None:
        raise AdapterError(
            f"{shown(text)} is not a valid line of an adapter; expected the name of a tensor, then steps such as .T."
        )
    name, steps = found["name"], found["steps"]
    longer = [step.end() for step in STEP.finditer(steps) if name + steps[: step.end()] in names]
    end = longer[-1] if longer else 0
    return name + steps[:end], steps[end:]


def stacked(name: str, shapes: Shapes) -> tuple[str, ...]:
    """Return the tensors whose names equal `name` with a number in place of `{n}`, sorted by this number."""
    pattern = re.compile(re.escape(name).replace(r"\{n\}", r"(\d+)"))
    found = {int(match[1]): each for each in shapes if (match := pattern.fullmatch(each))}
    return tuple(found[number] for number in sorted(found))


def _taken(value: np.ndarray, step: re.Match[str], sizes: Mapping[str, int]) -> np.ndarray:
    if step["index"] is not None:
        return value[tuple(_item(part, sizes) for part in step["index"].split(","))]
    if step["method"] == "T":
        return value.T
    arguments = [size_of(part, sizes) for part in (step["sizes"] or "").split(",")]
    return value.reshape(arguments) if step["method"] == "view" else value.transpose(arguments)


def _item(text: str, sizes: Mapping[str, int]) -> int | slice:
    """Parse an index or a slice without a step."""
    if ":" not in text:
        return size_of(text, sizes)
    first, _, last = text.partition(":")
    return slice(*(size_of(each, sizes) if each.strip() else None for each in (first, last)))


OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
}


def size_of(text: str, sizes: Mapping[str, int]) -> int:
    """Evaluate an integer expression of digits, letters and `+ - * /`."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, sizes)
    except (SyntaxError, RecursionError):
        raise ValueError(f"{text.strip()!r} is not a size") from None


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name) and node.id in sizes:
        return sizes[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, sizes)
    if not isinstance(node, ast.BinOp):
        raise ValueError(f"{ast.unparse(node)!r} is not a size; expected numbers and {', '.join(sizes)}")
    one, other, compute = _value(node.left, sizes), _value(node.right, sizes), OPERATIONS.get(type(node.op))
    is_whole = not isinstance(node.op, ast.Div) or (other and one % other == 0)
    if compute is not None and is_whole:
        return compute(one, other)
    says = "is not a whole number" if compute is not None else "has an operator other than +, -, * and /"
    raise ValueError(f"{ast.unparse(node)!r} {says}")


Lines = dict[str, str]


def templates(text: str, layer: int, names: Shapes) -> Iterator[str]:
    """Yield copies of a line in which `{i}` replaces an occurrence of `layer`, or `{i+1}` replaces `layer + 1`."""
    name, steps = parted(text, names)
    for match in COUNTED.finditer(name):
        offset = int(match[0]) - layer
        if offset in (0, 1):
            yield f"{name[: match.start()]}{{i{f'+{offset}' if offset else ''}}}{name[match.end() :]}{steps}"
    if steps.startswith(f"[{layer}]"):
        yield f"{name}[{{i}}]{steps.removeprefix(f'[{layer}]')}"


def at_layer(template: str, layer: int) -> str:
    return re.sub(r"\{i(?:\+(\d+))?\}", lambda found: str(layer + int(found[1] or 0)), template)


def for_all_layers(lines: Mapping[str, str], names: Shapes) -> Lines:
    """Merge the lines of a parameter into one line with `{i}` if they differ only in the layer's number."""
    found: Lines = {}
    places = {name: (in_every_layer(name), place) for name in lines if (place := in_layer(name)) is not None}
    by_layer: dict[str, dict[int, str]] = {}
    for name, (general, place) in places.items():
        by_layer.setdefault(general, {})[place[1]] = lines[name]
    for ours, text in lines.items():
        if ours not in places:
            found[ours] = text
            continue
        general, place = places[ours]
        alike = by_layer[general]
        ways = [ABSENT] if text == ABSENT else templates(text, place[1], names)
        same = [way for way in ways if all(at_layer(way, layer) == each for layer, each in alike.items())]
        found |= {general: same[0]} if same else {ours: text}
    return found


def line_of(ours: str, lines: Mapping[str, str]) -> str | None:
    if ours in lines:
        return lines[ours]
    template, place = lines.get(in_every_layer(ours)), in_layer(ours)
    return None if template is None or place is None else at_layer(template, place[1])
