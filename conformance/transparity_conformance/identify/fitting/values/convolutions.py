"""Find causal convolutions: kernels for which an operation computes silu(convolution(x)) of an earlier x."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.linears import Linear
from transparity_conformance.identify.fitting.values.numbers import is_same
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays
from transparity_numpy.arithmetic.functional import silu
from transparity_numpy.mixers.recurrence import causal_convolution

WIDEST = 16


@dataclass(frozen=True, eq=False)
class Convolution:
    at: int
    given: np.ndarray
    made: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray | None
    names: tuple[str, ...]


def kernels_over_time(values: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    """Yield parameters that may be kernels, as (features, width). PyTorch stores (features, 1, width), flax stores
    (width, 1, features); matrices may have either orientation."""
    for name, value in values.items():
        matrix = value[:, 0] if value.ndim == 3 and value.shape[1] == 1 else value
        if matrix.ndim != 2:
            continue
        for kernel in sorted((matrix, matrix.T), key=lambda each: each.shape[1]):
            if kernel.shape[1] <= WIDEST or value.ndim > 2:
                yield name, kernel


def convolutions_in(operations: Sequence[Operation], values: Arrays, batch: int, length: int) -> list[Convolution]:
    rows: dict[int, list[tuple[int, np.ndarray]]] = {}
    found: list[Convolution] = []
    for name, kernel in kernels_over_time(values):
        features = len(kernel)
        if features not in rows:
            rows[features] = list(_rows_of(operations, (batch, length, features)))
        biases = {"": np.zeros(features)} | {each: own for each, own in values.items() if own.shape == (features,)}
        found += itertools.islice(_uses(name, kernel, biases, rows[features]), 1)
    return sorted(found, key=lambda each: each.at)


def _rows_of(operations: Sequence[Operation], shape: tuple[int, int, int]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the values of a shape (rows, positions, features), possibly recorded as (rows, features, positions)."""
    batch, length, features = shape
    last = np.empty(0)
    for index, operation in enumerate(operations):
        value = operation.value
        if value.size != batch * length * features or value.ndim < 2:
            continue
        is_time_last = value.shape[-1] == length != features
        value = value.reshape(batch, features, length).swapaxes(1, 2) if is_time_last else value.reshape(shape)
        if not np.array_equal(last, value):
            last = value
            yield index, value


def _uses(
    name: str, kernel: np.ndarray, biases: Arrays, rows: Sequence[tuple[int, np.ndarray]]
) -> Iterator[Convolution]:
    for place, (_, given) in enumerate(rows):
        # Compare the first position first: it depends only on itself, and quickly excludes most pairs.
        begins = {bias: silu(kernel[:, -1] * given[0, 0] + added) for bias, added in biases.items()}
        for index, made in rows[place + 1 : place + 17]:  # a convolution takes few operations
            for bias in (each for each, begin in begins.items() if is_same(begin, made[0, 0])):
                before = np.zeros((len(given), kernel.shape[1] - 1, given.shape[2]))
                if is_same(silu(causal_convolution(kernel, given, before) + biases[bias]), made):
                    own = biases[bias] if bias else None
                    yield Convolution(index, given, made, kernel, own, (name, bias) if bias else (name,))


def grouped(found: Sequence[Convolution], maps: Sequence[Linear]) -> list[tuple[list[Convolution], list[Linear]]]:
    """Return each layer's convolutions, and the linear maps of their input. Raise `FitError` without these maps."""
    groups: list[tuple[list[Convolution], list[Linear]]] = []
    for each in found:
        first = each.given.reshape(-1, each.given.shape[2])[:, :1]
        before = [one for one in maps if one.at < each.at and len(one.made) == len(first)]
        source = next((one for one in before[::-1] if any(is_same(column, first) for column in one.made.T)), None)
        if source is None:
            raise FitError(f"The convolution of {each.names[0]} does not read the output of a linear map.")
        if groups and source in groups[-1][1]:
            groups[-1][0].append(each)
        else:
            groups.append(([each], [one for one in maps if is_same(one.given, source.given)]))
    return groups
