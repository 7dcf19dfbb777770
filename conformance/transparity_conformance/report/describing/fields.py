"""Descriptions of the fields of a configuration, as text and as JSON: their values, defaults and meanings."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from transparity.config import FIELD_TYPES, PER_LAYER, TransformerConfig
from transparity.config.fields import COUNT
from transparity.parameters import parameter_shapes
from transparity.presets import departures
from transparity.taps import tap_shapes
from transparity_conformance.report.describing.describe import BATCH, LENGTHS, OPEN


@functools.cache
def meanings() -> dict[str, str]:
    """Return the docstring of every field, in one line."""
    (described,) = ast.parse(inspect.getsource(TransformerConfig)).body
    assert isinstance(described, ast.ClassDef)
    found: dict[str, str] = {}
    for field, text in itertools.pairwise(described.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = " ".join(ast.literal_eval(text.value).split())
    return found


def values(name: str) -> list[str] | str:
    """Return the allowed values of a field: all words of a choice, or the range of a number."""
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
        needed = name == "architecture"
        default = "-inf" if field.default == -math.inf else field.default
        default = dict(default) if isinstance(default, Mapping) else default
        row = {"name": name, "values": values(name), "meaning": meanings()[name]}
        rows.append(row | ({} if needed else {"default": default}))
    return rows


def lines() -> Iterator[tuple[str, str]]:
    """Yield, for every field, its values and default in one line, and its meaning."""
    for row in as_rows():
        allowed = row["values"] if isinstance(row["values"], str) else ", ".join(row["values"])
        default = row.get("default", "")
        usual = ", ".join(default) if isinstance(default, tuple) else str(default)
        yield f"{row['name']}: {allowed}{f' (default: {usual})' if 'default' in row else ''}", row["meaning"]


def described(config: TransformerConfig) -> dict[str, Any]:
    """Return a configuration, its departures from its paper, its parameters and its taps as JSON.

    Open sizes, such as the batch, are words.
    """
    lengths = {name: LENGTHS[name] for name in config.input_names}
    taps = tap_shapes(config, BATCH, **lengths)
    return {
        "config": config.as_dict(),
        "departures": departures(config),
        "parameters": {name: list(shape) for name, shape in parameter_shapes(config).items()},
        "taps": {name: [OPEN.get(size, size) for size in shape] for name, shape in taps.items()},
    }
