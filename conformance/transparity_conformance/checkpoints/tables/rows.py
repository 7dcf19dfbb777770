"""Rows of a family's table: each is a field of config.json that is read, written, audited and listed.

A row has the fields that it reads, with the values that transformers takes for missing ones, and both directions:
fields of ours from those of config.json, and back. `rename`, `flag`, `whole`, `number`, `enum`, `switch` and
`activation` make a row for one field; `derived` makes one of a function and its inverse.
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
"""Computes fields of ours from those of config.json."""

Write = Callable[[TransformerConfig], dict[str, Any]]
"""Computes fields of config.json from a configuration: the inverse of `Read`, for what it can express."""

Value = Callable[[Fields, str], Any]
"""Returns the value of a field, checked and converted."""

REQUIRED = object()
"""The default of a field that a file has to have."""


@dataclass(frozen=True)
class FieldRow:
    """A field of config.json, or several that are computed together."""

    name: str
    """The first of its fields; a row of a variant replaces that of the same name."""
    reads: tuple[str, ...]
    """The fields of config.json."""
    defaults: Fields
    """The values that transformers takes for missing fields; a field without one is null."""
    read: Callable[[Fields, Collection[str]], dict[str, Any]]
    """Computes fields of ours from those of config.json and from the names of the tensors."""
    write: Write
    ours: tuple[str, ...] = ()
    """The fields of ours that are read unchanged."""


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
    """A field that is one of ours, or several, by another name.

    Args:
        name: in config.json.
        ours: our names.
        default: the value that transformers takes if the field is missing.
        written: the attribute of a configuration that is written, in place of the first of `ours`.
    """
    row = _value(name, ours, default, lambda fields, name: fields[name], _same, written)
    return dataclasses.replace(row, ours=(ours,) if isinstance(ours, str) else ours)


def flag(name: str, ours: str | tuple[str, ...], default: Any = REQUIRED) -> FieldRow:
    """A truth value; null is false."""
    return _value(name, ours, default, as_flag, _same, "")


def whole(name: str, ours: str, default: Any = REQUIRED, *, written: str = "") -> FieldRow:
    """A size: a whole number, at least 1."""
    return _value(name, ours, default, as_whole, _same, written)


def number(
    name: str, ours: str, default: Any, to: Callable[[float], float] = _same, back: Callable[[float], Any] = _same
) -> FieldRow:
    """A number greater than 0, converted by `to` and `back`."""
    return _value(name, ours, default, lambda fields, name: to(as_number(fields, name)), back, "")


def enum(name: str, ours: str, values: Mapping[Any, str], default: Any = REQUIRED) -> FieldRow:
    """One of `values`, each with ours; the first of several for one of ours is written."""

    def write(value: str) -> Any:
        return next((theirs for theirs, each in values.items() if each == value), None)

    return _value(name, ours, default, lambda fields, name: as_one_of(fields, name, values), write, "")


def activation(name: str, default: Any = REQUIRED) -> FieldRow:
    """An activation of the feed-forward."""
    return enum(name, "activation", ACTIVATIONS, default)


def switch(name: str, ours: str, on: str, off: str, default: Any = REQUIRED) -> FieldRow:
    """A truth value for one of two choices of ours; null is false."""

    def choice(fields: Fields, name: str) -> str:
        return on if as_flag(fields, name) else off

    return _value(name, ours, default, choice, lambda value: value == on, "")


def derived(read: Read, write: Write, *reads: str, **defaults: Any) -> FieldRow:
    """Fields of ours that are computed from several of config.json, or in a way of their own.

    Args:
        read: computes fields of ours.
        write: its inverse.
        reads: the fields that are read and null if they are missing.
        defaults: the other fields that are read, with the values that transformers takes for missing ones.
    """
    return by_tensors(lambda fields, _: read(fields), write, *reads, **defaults)


def by_tensors(
    read: Callable[[Fields, Collection[str]], dict[str, Any]], write: Write, *reads: str, **defaults: Any
) -> FieldRow:
    """As `derived`, with the names of the tensors as another argument of `read`."""
    names = (*defaults, *reads)
    return FieldRow(next(iter(names), "by tensors"), names, defaults, read, write)


def sizes(stack: str, length: Any = REQUIRED, inner: str = "intermediate_size") -> tuple[FieldRow, ...]:
    """The sizes of a model with one stack, by their usual names.

    Args:
        stack: encoder or decoder.
        length: the default of `max_position_embeddings`.
        inner: the field of the width of feed-forwards.
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
    """Return no field: what the row reads is written by another one, or by the tensors."""
    return {}


def tokens(**defaults: int | None) -> FieldRow:
    """The special tokens that transformers takes for missing ones: `pad`, `bos`, `eos`, `decoder_start`."""
    of_file = {f"{name}_token_id": token for name, token in defaults.items()}
    return FieldRow("tokens", (), of_file, lambda fields, names: {}, lambda config: {})


def same(name: str, other: str, ours: str) -> FieldRow:
    """Two fields that are one of ours."""

    def read(fields: Fields) -> dict[str, Any]:
        if fields[name] != fields[other]:
            raise wrong(other, fields[other], f"{as_json(fields[name])}, as {name} is")
        return {ours: fields[name]}

    return derived(read, lambda config: dict.fromkeys((name, other), getattr(config, ours)), name, other)


def head_width(width: str = "head_dim", default: Any = None, **sizes: str) -> FieldRow:
    """The width of a head, if it is not embed_dim / num_heads."""
    return derived(
        lambda fields: as_head_width(fields, width, **sizes),
        lambda config: {width: config.head_dim},
        **{width: default},
    )
