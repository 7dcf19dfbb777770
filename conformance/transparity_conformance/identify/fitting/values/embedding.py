"""Recognize a stack's embedding by value: the tables, the factor of the tokens, and the added positions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from transparity.config import RopeLayout, Timescales
from transparity_conformance.identify.fitting.subject import FitError, RecordedCall
from transparity_conformance.identify.fitting.values.numbers import (
    SAME,
    difference,
    digits,
    factor_between,
    is_same,
    settle,
)
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.positions.sinusoidal import sinusoidal_positions

USUAL_THETA = 10_000.0
TABLE, PLACES = "token_embedding.weight", "position_embedding.weight"


@dataclass(frozen=True, eq=False)
class Embedding:
    """An embedding with its fields, and with its parameters under the reference's names without the stack."""

    table: str
    """The token table, or the first parameter that reads an image or audio."""
    parameters: Arrays
    fields: Mapping[str, Any]
    used: tuple[str, ...] = ()
    """The parameters that read images and audio."""
    value: np.ndarray = dataclasses.field(default_factory=lambda: np.empty(0))
    scale: float = 1.0

    @property
    def positions(self) -> str:
        return str(self.fields["positions"])

    @property
    def reads_tokens(self) -> bool:
        return TABLE in self.parameters


def table_of(operations: Sequence[Operation], tokens: np.ndarray, values: Arrays) -> str | None:
    for name, table in values.items():
        if table.ndim == 2 and len(table) > tokens.max():
            looked_up = table[tokens]
            if any(each.value.shape[-1:] == table.shape[1:] and is_same(each.value, looked_up) for each in operations):
                return name
    return None


def embedding(heard: RecordedCall, tokens: np.ndarray, types: np.ndarray | None, values: Arrays) -> Embedding:
    table = table_of(heard.operations, tokens, values)
    assert table is not None, "no operation looks up the tokens in a table"
    parameters, looked_up = {TABLE: values[table]}, values[table][tokens]
    others = {name: each for name, each in values.items() if name != table}
    added = np.zeros_like(looked_up)
    if types is not None and (type_table := table_of(heard.operations, types, others)):
        rows = parameters["token_type_embedding.weight"] = others.pop(type_table)
        added = rows[types]
    made = positioned(Embedding(table, parameters, {}), sums_of(heard.operations, looked_up, added), others)
    if made is None:
        raise FitError(f"No operation adds rows of a position table, or sinusoids, to the rows of {table}.")
    return made


Sum = tuple[np.ndarray, float, np.ndarray]
"""(sum of the embeddings and positions, factor of the embeddings, positions)."""


def positioned(plain: Embedding, sums: Iterator[Sum], others: Arrays) -> Embedding | None:
    """Return the embedding of the last sum whose positions are zero, sinusoids, or rows of a table in `others`."""
    for value, scale, left in reversed(list(sums)):
        found = ({"positions": "none"}, {}) if is_same(value, value - left) else _positions(left[0], others)
        if found is not None:
            fields, own = {"position_offset": 0, **plain.fields, **found[0]}, {**plain.parameters, **found[1]}
            rows = value.reshape(-1, value.shape[-1])
            return dataclasses.replace(plain, value=rows, scale=scale, fields=fields, parameters=own)
    return None


def _positions(left: np.ndarray, others: Arrays) -> tuple[Mapping[str, Any], Arrays] | None:
    """Return the fields of positions, and their table. Raise `FitError` for a table with a factor, which no
    configuration has."""
    length, width = left.shape
    like = {name: each.reshape(-1, width) for name, each in others.items() if each.shape[-1:] == (width,)}
    tables = {name: table for name, table in like.items() if len(table) >= length}
    for table in tables.values():
        for offset in range(len(table) - length + 1):
            if is_same(table[offset], left[0]) and is_same(table[offset : offset + length], left):
                return {"positions": "learned", "position_offset": offset}, {PLACES: table}
    if fields := _sinusoidal(left):
        return fields, {}
    for name, table in tables.items():
        factor = factor_between(table[:length], left)
        if factor is not None:
            raise FitError(
                f"The rows of {name} are multiplied by {factor:.4g} before they are added to the tokens; "
                "multiply the table itself, or remove the factor."
            )
    return None


def sums_of(
    operations: Sequence[Operation], looked_up: np.ndarray, added: np.ndarray, *, is_scaled: bool = True
) -> Iterator[Sum]:
    """Yield a `Sum` for each operation that adds positions. The factor of the embeddings is 1 or, if `is_scaled`,
    √width or any number. To find the number, compare rows of the batch, because their positions are equal."""
    across = looked_up - looked_up.mean(0)
    for operation in operations:
        if operation.value.size != looked_up.size:
            continue
        value = operation.value.reshape(looked_up.shape)
        floor, differing = SAME * np.abs(value).max(), value - added - (value - added).mean(0)
        fitted = float((differing * across).sum() / (across * across).sum())
        if np.abs(fitted * across).max() <= floor:  # no tokens in the value: zeros, or only positions
            continue

        def error(factor: float, differing: np.ndarray = differing) -> float:
            return difference(across * factor, differing)

        for scale in (looked_up.shape[-1] ** 0.5, 1.0, fitted) if is_scaled else (1.0,):
            left = value - looked_up * scale - added
            # exclude a norm, which subtracts a constant mean
            is_nothing, is_constant = np.abs(left).max() <= floor, np.abs(left - left[:1, :1]).max() <= floor
            if np.abs(left - left[:1]).max() <= floor and (is_nothing or not is_constant):
                yield value, settle(scale, error) if scale is fitted else scale, left
                break


def _sinusoidal(left: np.ndarray) -> dict[str, Any]:
    """Return the fields of the sinusoids `left`, or {} if no sinusoids fit."""
    length, width = left.shape
    found: list[tuple[int, float, RopeLayout, Timescales]] = []
    kinds = itertools.product(get_args(RopeLayout), get_args(Timescales)) if width % 2 == 0 and length > 1 else ()
    for layout, timescales in kinds:
        both = left[1].reshape(-1, 2).T if layout == "interleaved" else left[1].reshape(2, -1)
        angles, whole = np.arctan2(both[0], both[1]), width if timescales == "exclusive" else width - 2
        if not whole:
            continue

        def error(theta: float, layout: RopeLayout = layout, timescales: Timescales = timescales) -> float:
            return difference(sinusoidal_positions(length, width, theta, layout, timescales), left)

        estimates = np.abs(angles[1:]) ** (-whole / (2 * np.arange(1, len(angles))))
        best = min((float(each) for each in estimates if 0 < each < np.inf), key=error, default=USUAL_THETA)
        theta = settle(best, error, (USUAL_THETA,), "float32")
        if error(theta) <= SAME:  # both kinds may fit, with different theta
            found.append((digits(theta), theta, layout, timescales))
    if not found:
        return {}
    _, *values = min(found, key=lambda each: each[0])
    names = ("rope_theta", "rope_layout", "sinusoidal_timescales")
    return {"positions": "sinusoidal", **dict(zip(names, values, strict=True))}
