"""Find causal convolutions: kernels for which an operation computes silu(convolution(x)) of an earlier x."""

from __future__ import annotations

import functools
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
    found = []
    rows = functools.cache(lambda features: _rows_of(operations, (batch, length, features)))
    for name, kernel in kernels_over_time(values):
        vectors = {each: value for each, value in values.items() if value.shape == (len(kernel),)}
        made = next(_uses(name, kernel, vectors, rows(len(kernel))), None)
        if made is not None:
            found.append(made)
    return sorted(found, key=lambda each: each.at)


def _rows_of(operations: Sequence[Operation], shape: tuple[int, int, int]) -> list[tuple[int, np.ndarray]]:
    batch, length, features = shape
    found: list[tuple[int, np.ndarray]] = []
    for index, operation in enumerate(operations):
        value = operation.value
        if value.size != batch * length * features or value.ndim < 2:
            continue
        if value.shape[-1] == length != features:
            value = value.reshape(batch, features, length).swapaxes(1, 2)
        else:
            value = value.reshape(shape)
        if not found or not np.array_equal(found[-1][1], value):
            found.append((index, value))
    return found


def _uses(
    name: str, kernel: np.ndarray, vectors: Arrays, rows: Sequence[tuple[int, np.ndarray]]
) -> Iterator[Convolution]:
    biases: dict[str, np.ndarray] = {"": np.zeros(len(kernel)), **vectors}
    for place, (_, given) in enumerate(rows):
        # Compare the first position first: it depends only on itself, and quickly excludes most pairs.
        begins = {bias: silu(kernel[:, -1] * given[0, 0] + added) for bias, added in biases.items()}
        for index, made in rows[place + 1 : place + 17]:  # a convolution takes few operations
            for bias, begin in begins.items():
                if not is_same(begin, made[0, 0]):
                    continue
                before = np.zeros((len(given), kernel.shape[1] - 1, given.shape[2]))
                if is_same(silu(causal_convolution(kernel, given, before) + biases[bias]), made):
                    names = (name, bias) if bias else (name,)
                    yield Convolution(index, given, made, kernel, vectors.get(bias), names)


def grouped(found: Sequence[Convolution], maps: Sequence[Linear]) -> list[tuple[list[Convolution], list[Linear]]]:
    """Return each layer's convolutions, and the linear maps of their input. Raise `FitError` without these maps."""
    groups: list[tuple[list[Convolution], list[Linear]]] = []
    for each in found:
        source = _source(each, maps)
        if groups and any(source is one for one in groups[-1][1]):
            groups[-1][0].append(each)
            continue
        groups.append(([each], [one for one in maps if is_same(one.given, source.given)]))
    return groups


def _source(convolution: Convolution, maps: Sequence[Linear]) -> Linear:
    first = convolution.given.reshape(-1, convolution.given.shape[2])[:, :1]
    for one in reversed(maps):
        is_before = one.at < convolution.at and len(one.made) == len(first)
        if is_before and any(is_same(column, first) for column in one.made.T):
            return one
    raise FitError(f"The convolution of {convolution.names[0]} does not read the output of a linear map.")
