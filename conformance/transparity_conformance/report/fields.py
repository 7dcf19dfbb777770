"""Describe configurations as text and as JSON: their fields, parameters and activations."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from rich.table import Table

from transparity.config import FIELD_TYPES, PER_LAYER, TransformerConfig
from transparity.config.fields import COUNT
from transparity.parameters import parameter_shapes
from transparity.presets import departures
from transparity.taps import in_every_layer, in_layer, tap_shapes
from transparity_conformance.report.formatting import ranges
from transparity_conformance.report.terminal import plain_table

BATCH = -1
LENGTHS = {"source": -2, "target": -3, "tokens": -4, "pixels": -4}
"""Placeholders for unknown sizes, negative to differ from all real sizes."""

OPEN = {BATCH: "batch", -2: "source", -3: "target", -4: "tokens"}


@functools.cache
def meanings() -> dict[str, str]:
    (described,) = ast.parse(inspect.getsource(TransformerConfig)).body
    assert isinstance(described, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in itertools.pairwise(described.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def values(name: str) -> list[str] | str:
    """Return the allowed values of a field: all choices, or a text such as the range of a number."""
    kind, field = FIELD_TYPES[name], TransformerConfig.__dataclass_fields__[name]
    if get_origin(kind) is Literal:
        return list(get_args(kind))
    if get_origin(kind) is Mapping:
        return f"for each kind of layer, values of {', '.join(PER_LAYER)}"
    if kind == tuple[str, ...]:
        return "the kind of each layer, as a list of names"
    if kind == tuple[float, ...]:
        return f"numbers, each {field.metadata['range'].text}"
    if get_origin(kind) is tuple:
        return f"a list of {', '.join(get_args(get_args(kind)[0]))}"
    if kind is bool:
        return ["true", "false"]
    text: str = field.metadata.get("range", COUNT).text
    whole = "" if float in (kind, *get_args(kind)) else "a whole number "
    return f"{whole}{text}{', or null' if type(None) in get_args(kind) else ''}"


def as_rows() -> list[dict[str, Any]]:
    rows = []
    for name, field in TransformerConfig.__dataclass_fields__.items():
        default = "-inf" if field.default == -math.inf else field.default
        default = dict(default) if isinstance(default, Mapping) else default
        row = {"name": name, "values": values(name), "meaning": meanings()[name]}
        rows.append(row | ({} if name == "architecture" else {"default": default}))
    return rows


def lines() -> Iterator[tuple[str, str]]:
    """Yield each field's name with its values and default, and its meaning."""
    for row in as_rows():
        allowed = row["values"] if isinstance(row["values"], str) else ", ".join(row["values"])
        default = row.get("default", "")
        usual = ", ".join(default) if isinstance(default, tuple) else str(default)
        yield f"{row['name']}: {allowed}{f' (default: {usual})' if 'default' in row else ''}", row["meaning"]


def described(config: TransformerConfig) -> dict[str, Any]:
    """Describe a configuration as JSON; words such as `batch` stand for unknown sizes."""
    return {
        "config": config.as_dict(),
        "departures": departures(config),
        "parameters": {name: list(shape) for name, shape in parameter_shapes(config).items()},
        "taps": {name: [OPEN.get(size, size) for size in shape] for name, shape in _taps(config).items()},
    }


def _taps(config: TransformerConfig) -> dict[str, tuple[int, ...]]:
    return tap_shapes(config, BATCH, **{name: LENGTHS[name] for name in config.input_names})


def parameters_table(config: TransformerConfig) -> Table:
    shapes = parameter_shapes(config)
    table = _table("parameter", "shape", "numbers")
    for name, shape, layers in _by_layer(shapes):
        table.add_row(name, _shown(shape), f"{math.prod(shape) * layers:,}")
    table.add_section()
    table.add_row("all", "", f"{sum(map(math.prod, shapes.values())):,}")
    return table


def taps_table(config: TransformerConfig) -> Table:
    table = _table("activation", "shape")
    for name, shape, _ in _by_layer(_taps(config)):
        table.add_row(name, _shown(shape))
    return table


def _by_layer(shapes: Mapping[str, tuple[int, ...]]) -> Iterable[tuple[str, tuple[int, ...], int]]:
    """Yield (name, shape, number of layers); equal layers share a name, such as `decoder.layers.0…3.output`."""
    layers: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, shape in shapes.items():
        found = in_layer(name)
        layers.setdefault((in_every_layer(name), shape), []).append(found[1] if found else 0)
    for (name, shape), numbers in layers.items():
        yield name.replace("{i}", ",".join(ranges(numbers, "…"))), shape, len(numbers)


def _shown(shape: tuple[int, ...]) -> str:
    return f"({', '.join(OPEN.get(size, f'{size:,}') for size in shape)})"


def _table(*columns: str) -> Table:
    table = plain_table()
    for column in columns:
        table.add_column(column, justify="right" if column == "numbers" else "left", no_wrap=column != "shape")
    return table
