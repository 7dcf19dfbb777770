"""Rows of a family's table: conversions from fields of config.json to fields of `TransformerConfig`, and back.

A row names the fields that it reads, and the values that `transformers` uses if a field is missing. Each function in
`KINDS` makes a row from one row of a TOML table. The functions `as_…` check and convert the value of a field.
"""

import functools
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import is_number, is_whole
from transparity_conformance.checkpoints.reading import CheckpointError, as_json

Fields = Mapping[str, Any]
"""Fields of config.json or of `TransformerConfig`, by name."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

MOST_LAYERS = 10_000
"""The largest supported number of layers, which limits the memory for the kinds of all layers."""


def wrong(name: str, found: Any, expected: str) -> CheckpointError:
    return CheckpointError(f"{name} is {as_json(found)}; expected {expected}: other values cannot be imported.")


def as_one_of(fields: Fields, name: str, values: Mapping[Any, str]) -> str:
    found = fields[name]
    if not isinstance(found, str) or found not in values:
        raise wrong(name, found, f"one of {', '.join(values)}")
    return values[found]


def as_activation(fields: Fields, name: str) -> str:
    return as_one_of(fields, name, ACTIVATIONS)


def activation_name(config: TransformerConfig) -> str:
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)


def as_whole(fields: Fields, name: str, least: int = 1, expected: str = "a whole number, at least 1") -> int:
    if not is_whole(fields[name], least):
        raise wrong(name, fields[name], expected)
    return int(fields[name])


def as_layers(fields: Fields) -> int:
    count = fields["num_hidden_layers"]
    if not is_whole(count, 0) or count > MOST_LAYERS:
        raise wrong("num_hidden_layers", count, f"a whole number, at most {MOST_LAYERS}")
    return int(count)


def as_number(fields: Fields, name: str) -> float:
    found = fields[name]
    if not is_number(found) or not 0 < found <= sys.float_info.max:  # JSON integers may exceed the largest float
        raise wrong(name, found, "a finite number greater than 0")
    return float(found)


def as_numbers(fields: Fields, name: str) -> tuple[float, ...]:
    listed = fields[name] if isinstance(fields[name], list) else [None]
    return tuple(as_number({f"{name}[{i}]": each}, f"{name}[{i}]") for i, each in enumerate(listed))


def as_flag(fields: Fields, name: str) -> bool:
    if fields[name] not in (None, False, True):
        raise wrong(name, fields[name], "true or false")
    return bool(fields[name])


def read_head_width(
    fields: Fields, width: str = "head_dim", heads: str = "num_attention_heads", embed_dim: str = "hidden_size"
) -> dict[str, Any]:
    """Return `attention_head_dim` if the width of a head differs from embed_dim / num_heads; otherwise `{}`."""
    if fields[width] is None or as_whole(fields, width) * as_whole(fields, heads) == as_whole(fields, embed_dim):
        return {}
    return {"attention_head_dim": fields[width]}


def write_head_width(config: TransformerConfig) -> dict[str, Any]:
    return {"head_dim": config.head_dim}


def nearest(*candidates: float, right: Callable[[float], bool]) -> float:
    """Invert a conversion that rounds: return the first candidate, or else the nearest float to the last candidate, for
    which `right` is true. If none is right, return the last candidate."""
    last = candidates[-1]
    near = [last + step * math.ulp(last) for step in sorted(range(-8, 9), key=abs)]
    return next((each for each in (*candidates, *near) if each and right(each)), last)


Read = Callable[[Fields], dict[str, Any]]
"""A function that converts fields of config.json to fields of `TransformerConfig`."""

Write = Callable[[TransformerConfig], dict[str, Any]]
"""A function that converts a configuration to fields of config.json; the inverse of `Read` for the family's models."""

REQUIRED = object()
"""Marks a field that has no default."""


@dataclass(frozen=True)
class FieldRow:
    """A row for one field of config.json, or for several fields that are converted together."""

    name: str
    """The name of the first field."""
    reads: tuple[str, ...]
    defaults: Fields
    """The values that `transformers` uses for missing fields. A field outside `defaults` is required, or null if
    missing."""
    read: Callable[[Fields, Collection[str]], dict[str, Any]]
    """A function from fields of config.json and the names of all tensors to `TransformerConfig` fields."""
    write: Write
    ours: tuple[str, ...] = ()
    """The `TransformerConfig` fields that get the value of config.json unchanged."""


CHECKS: Mapping[str, Callable[[Fields, str], Any]] = {
    "rename": lambda fields, name: fields[name],
    "flag": as_flag,
    "whole": as_whole,
    "number": as_number,
    "numbers": as_numbers,
    "activation": as_activation,
}
"""Kinds of rows for one field, with functions that check and convert the value of the field."""


def one_field(
    kind: str,
    name: str,
    ours: str | Sequence[str],
    *,
    default: Any = REQUIRED,
    written: str = "",
    values: Mapping[str, str] | None = None,
) -> FieldRow:
    """Return a row for one field of config.json; `kind` is `enum` or a key of `CHECKS`.

    `ours` names one or several fields of `TransformerConfig`. `default` is the value that `transformers` uses for a
    missing field. `written` is the attribute that is written to config.json, by default the first of `ours`. An `enum`
    has `values`; if several texts in `values` have the same meaning, the first text is written.
    """
    names = (ours,) if isinstance(ours, str) else tuple(ours)
    choices = ACTIVATIONS if kind == "activation" else values

    def read(fields: Fields, tensors: Collection[str]) -> dict[str, Any]:
        value = CHECKS[kind](fields, name) if values is None else as_one_of(fields, name, values)
        return dict.fromkeys(names, value)

    def write(config: TransformerConfig) -> dict[str, Any]:
        value = getattr(config, written or names[0])
        return {name: value if choices is None else next((each for each in choices if choices[each] == value), None)}

    defaults = {} if default is REQUIRED else {name: default}
    return FieldRow(name, (name,), defaults, read, write, names if kind == "rename" else ())


def switch(name: str, ours: str, on: str, off: str, default: bool) -> FieldRow:
    """Return a row for a boolean that chooses between two values; null means false."""
    return FieldRow(
        name,
        (name,),
        {name: default},
        lambda fields, tensors: {ours: on if as_flag(fields, name) else off},
        lambda config: {name: getattr(config, ours) == on},
    )


def tokens(defaults: Mapping[str, int | None]) -> FieldRow:
    """Return a row for the special tokens `pad`, `bos`, `eos` and `decoder_start`, with their defaults in
    `transformers`."""
    of_file = {f"{name}_token_id": token for name, token in defaults.items()}
    return FieldRow("tokens", (), of_file, lambda fields, names: {}, write_nothing)


def same(name: str, ours: str, other: str) -> FieldRow:
    """Return a row for two fields that must have the same value."""

    def read(fields: Fields, names: Collection[str]) -> dict[str, Any]:
        if fields[name] != fields[other]:
            raise wrong(other, fields[other], f"{as_json(fields[name])}, the value of {name}")
        return {ours: fields[name]}

    return FieldRow(name, (name, other), {}, read, lambda config: dict.fromkeys((name, other), getattr(config, ours)))


def read_nothing(fields: Fields) -> dict[str, Any]:
    return {}


def write_nothing(config: TransformerConfig) -> dict[str, Any]:
    return {}


KINDS: Mapping[str, Callable[..., FieldRow]] = {
    **{kind: functools.partial(one_field, kind) for kind in (*CHECKS, "enum")},
    "switch": switch,
    "same": same,
}
"""The functions that make a row without a codec, by the name of the row's kind in a TOML table."""
