"""Rows of a family's table: each is a field of config.json that is read, written, audited and listed.

A row has the fields that it reads, transformers' defaults for missing ones, and conversions in both directions.
`rename`, `flag`, `whole`, `number`, `enum`, `switch` and `activation` make a row for one field. `derived` makes a row
from a function and its inverse.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.reading import as_json
from transparity_conformance.checkpoints.tables.values import (
    ACTIVATIONS,
    Fields,
    as_flag,
    as_head_width,
    as_number,
    as_one_of,
    as_whole,
    wrong,
)

Read = Callable[[Fields], dict[str, Any]]
"""Computes our fields from the fields of config.json."""

Write = Callable[[TransformerConfig], dict[str, Any]]
"""Computes fields of config.json from a configuration; the inverse of `Read` where possible."""

Value = Callable[[Fields, str], Any]
"""Returns the value of a field, checked and converted."""

REQUIRED = object()
"""The default of a required field."""


@dataclass(frozen=True)
class FieldRow:
    """A field of config.json, or several that are computed together."""

    name: str
    """The first of its fields; a variant's row replaces the row of the same name."""
    reads: tuple[str, ...]
    """The fields of config.json."""
    defaults: Fields
    """The values that transformers uses for missing fields; other missing fields are null."""
    read: Callable[[Fields, Collection[str]], dict[str, Any]]
    """Computes our fields from the fields of config.json and the names of the tensors."""
    write: Write
    ours: tuple[str, ...] = ()
    """Our fields that are read unchanged."""


def _value(
    name: str, ours: str | tuple[str, ...], default: Any, value: Value, back: Callable[[Any], Any], written: str
) -> FieldRow:
    names = (ours,) if isinstance(ours, str) else ours
    return FieldRow(
        name,
        (name,),
        {} if default is REQUIRED else {name: default},
        lambda fields, _: dict.fromkeys(names, value(fields, name)),
        lambda config: {name: back(getattr(config, written or names[0]))},
    )


def _same(value: Any) -> Any:
    return value


def rename(name: str, ours: str | tuple[str, ...], default: Any = REQUIRED, *, written: str = "") -> FieldRow:
    """Return a row for a field that has other names in our configuration.

    Args:
        name: The name in config.json.
        ours: Our names.
        default: The value that transformers uses for a missing field.
        written: The attribute to write, instead of the first of `ours`.
    """
    row = _value(name, ours, default, lambda fields, name: fields[name], _same, written)
    return dataclasses.replace(row, ours=(ours,) if isinstance(ours, str) else ours)


def flag(name: str, ours: str | tuple[str, ...], default: Any = REQUIRED) -> FieldRow:
    """Return a row for a boolean; null is false."""
    return _value(name, ours, default, as_flag, _same, "")


def whole(name: str, ours: str, default: Any = REQUIRED, *, written: str = "") -> FieldRow:
    """Return a row for a size, an integer of at least 1."""
    return _value(name, ours, default, as_whole, _same, written)


def number(
    name: str, ours: str, default: Any, to: Callable[[float], float] = _same, back: Callable[[float], Any] = _same
) -> FieldRow:
    """Return a row for a number greater than 0, converted by `to` and `back`."""
    return _value(name, ours, default, lambda fields, name: to(as_number(fields, name)), back, "")


def enum(name: str, ours: str, values: Mapping[Any, str], default: Any = REQUIRED) -> FieldRow:
    """Return a row for one of `values`, mapped to ours; for equal ones, the first is written."""

    def write(value: str) -> Any:
        return next((theirs for theirs, each in values.items() if each == value), None)

    return _value(name, ours, default, lambda fields, name: as_one_of(fields, name, values), write, "")


def activation(name: str, default: Any = REQUIRED) -> FieldRow:
    """Return a row for an activation of the feed-forward."""
    return enum(name, "activation", ACTIVATIONS, default)


def switch(name: str, ours: str, on: str, off: str, default: Any = REQUIRED) -> FieldRow:
    """Return a row for a boolean that selects one of two values of ours; null is false."""

    def choice(fields: Fields, name: str) -> str:
        return on if as_flag(fields, name) else off

    return _value(name, ours, default, choice, lambda value: value == on, "")


def derived(read: Read, write: Write, *reads: str, **defaults: Any) -> FieldRow:
    """Return a row for our fields that are computed from several fields of config.json.

    Args:
        read: Computes our fields.
        write: Its inverse.
        reads: Fields that are null if missing.
        defaults: Other fields, with the values that transformers uses for missing ones.
    """
    return by_tensors(lambda fields, _: read(fields), write, *reads, **defaults)


def by_tensors(
    read: Callable[[Fields, Collection[str]], dict[str, Any]], write: Write, *reads: str, **defaults: Any
) -> FieldRow:
    """Return a row as `derived`, with the names of the tensors as another argument of `read`."""
    names = (*defaults, *reads)
    return FieldRow(next(iter(names), "by tensors"), names, defaults, read, write)


def sizes(stack: str, length: Any = REQUIRED, inner: str = "intermediate_size") -> tuple[FieldRow, ...]:
    """Return rows for the sizes of a model with one stack, by their usual names.

    Args:
        stack: `encoder` or `decoder`.
        length: The default of `max_position_embeddings`.
        inner: The field of the feed-forward width.
    """
    side = "source" if stack == "encoder" else "target"
    return (
        rename("vocab_size", f"{side}_vocab_size"),
        rename("max_position_embeddings", "max_length", length),
        rename("hidden_size", "embed_dim"),
        rename("num_attention_heads", "num_heads"),
        rename("num_hidden_layers", f"num_{stack}_layers"),
        rename(inner, "feed_forward_dim"),
    )


def unwritten(config: TransformerConfig) -> dict[str, Any]:
    """Return no field; another row or the tensors determine it."""
    return {}


def tokens(**defaults: int | None) -> FieldRow:
    """Return a row for the default special tokens of transformers: `pad`, `bos`, `eos`, `decoder_start`."""
    of_file = {f"{name}_token_id": token for name, token in defaults.items()}
    return FieldRow("tokens", (), of_file, lambda fields, names: {}, lambda config: {})


def same(name: str, other: str, ours: str) -> FieldRow:
    """Return a row for two fields that correspond to one of ours."""

    def read(fields: Fields) -> dict[str, Any]:
        if fields[name] != fields[other]:
            raise wrong(other, fields[other], f"{as_json(fields[name])}, as {name} is")
        return {ours: fields[name]}

    return derived(read, lambda config: dict.fromkeys((name, other), getattr(config, ours)), name, other)


def head_width(width: str = "head_dim", default: Any = None, **sizes: str) -> FieldRow:
    """Return a row for the width of a head, if it is not embed_dim / num_heads."""
    return derived(
        lambda fields: as_head_width(fields, width, **sizes),
        lambda config: {width: config.head_dim},
        **{width: default},
    )
