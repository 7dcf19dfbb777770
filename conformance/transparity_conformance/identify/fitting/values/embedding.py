"""Recognize a stack's embedding by value: the tables, the factor of the tokens, and the added positions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import RopeLayout, Timescales
from transparity_conformance.identify.fitting.subject import FitError
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

USUAL_THETA = (10_000.0,)


@dataclass(frozen=True, eq=False)
class Embedding:
    table: str
    """The token table, or the first parameter that reads an image or audio."""
    scale: float
    value: np.ndarray
    positions: str = "none"
    position_table: str | None = None
    offset: int = 0
    theta: float = USUAL_THETA[0]
    layout: RopeLayout = "interleaved"
    timescales: Timescales = "exclusive"
    type_table: str | None = None
    parameters: Arrays = field(default_factory=dict)
    """For images and audio: the parameters under the reference's names, without the stack."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    used: tuple[str, ...] = ()

    @property
    def reads_tokens(self) -> bool:
        return not self.fields

    def length(self, batch: int) -> int:
        return len(self.value) // batch


def table_of(operations: Sequence[Operation], tokens: np.ndarray, values: Arrays) -> str | None:
    for name, table in values.items():
        if table.ndim == 2 and len(table) > tokens.max():
            looked_up = table[tokens]
            if any(each.value.shape[-1:] == table.shape[1:] and is_same(each.value, looked_up) for each in operations):
                return name
    return None


def embedding(
    operations: Sequence[Operation], tokens: np.ndarray, types: np.ndarray | None, values: Arrays
) -> Embedding:
    table = table_of(operations, tokens, values)
    assert table is not None, "no operation looks up the tokens in a table"
    type_table = None if types is None else table_of(operations, types, {k: v for k, v in values.items() if k != table})
    looked_up = values[table][tokens]
    added = values[type_table][types] if type_table else np.zeros_like(looked_up)
    others = {name: each for name, each in values.items() if name not in (table, type_table)}
    made = positioned(table, sums_of(operations, looked_up, added), others, type_table)
    if made is None:
        raise FitError(f"No operation adds rows of a position table, or sinusoids, to the rows of {table}.")
    return made


Sum = tuple[np.ndarray, float, np.ndarray]
"""The sum of embeddings and positions, the factor of the embeddings, and the positions."""


def positioned(tokens: str, sums: Iterable[Sum], others: Arrays, type_table: str | None = None) -> Embedding | None:
    """Return the embedding of the last sum whose positions are zero, sinusoids, or rows of a table in `others`. Raise
    `FitError` for rows with a factor, which no configuration has."""
    for value, scale, left in reversed(list(sums)):
        plain = Embedding(tokens, scale, value.reshape(-1, value.shape[-1]), type_table=type_table)
        if is_same(value, value - left):
            return plain
        length, width = left[0].shape
        is_like = {
            name: each.ndim == 2 and each.shape[1] == width and len(each) >= length for name, each in others.items()
        }
        tables = {name: table for name, table in others.items() if is_like[name]}
        for name, table in tables.items():
            for offset in range(len(table) - length + 1):
                if is_same(table[offset], left[0][0]) and is_same(table[offset : offset + length], left[0]):
                    return dataclasses.replace(plain, positions="learned", position_table=name, offset=offset)
        if (made := _sinusoidal(plain, left[0])) is not None:
            return made
        for name, rows in tables.items():
            factor = factor_between(rows[:length], left[0])
            if factor is not None:
                raise FitError(
                    f"The rows of {name} are multiplied by {factor:.4g} before they are added to the tokens; "
                    "multiply the table itself, or remove the factor."
                )
    return None


def sums_of(
    operations: Sequence[Operation], looked_up: np.ndarray, added: np.ndarray, *, is_scaled: bool = True
) -> Iterator[Sum]:
    """Yield a `Sum` for each operation that adds positions. The embeddings' factor is 1 or, if `is_scaled`, √width or
    another number. Differences between rows of the batch, which contain no positions, determine that number."""
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


def _sinusoidal(plain: Embedding, left: np.ndarray) -> Embedding | None:
    length, width = left.shape
    found: list[tuple[int, float, RopeLayout, Timescales]] = []
    layouts: tuple[RopeLayout, ...] = ("interleaved", "halves")
    scales: tuple[Timescales, ...] = ("exclusive", "inclusive") if width > 2 else ("exclusive",)
    for layout, timescales in itertools.product(layouts if width % 2 == 0 and length > 1 else (), scales):
        both = left[1].reshape(-1, 2).T if layout == "interleaved" else left[1].reshape(2, -1)
        angles = np.arctan2(both[0], both[1])

        def error(theta: float, layout: RopeLayout = layout, timescales: Timescales = timescales) -> float:
            return difference(sinusoidal_positions(length, width, theta, layout, timescales), left)

        steps = np.arange(1, len(angles))
        whole = width if timescales == "exclusive" else width - 2
        estimates = np.abs(angles[1:]) ** (-whole / (2 * steps)) if width > 2 else np.array([USUAL_THETA[0]])
        best = min((float(each) for each in estimates if 0 < each < np.inf), key=error, default=USUAL_THETA[0])
        theta = settle(best, error, USUAL_THETA, "float32")
        if error(theta) <= SAME:  # both kinds may fit, with different theta
            found.append((digits(theta), theta, layout, timescales))
    if not found:
        return None
    _, theta, layout, timescales = min(found, key=lambda each: each[0])
    return dataclasses.replace(plain, positions="sinusoidal", theta=theta, layout=layout, timescales=timescales)
