"""Find the linear maps of a module by value: operations whose result is a parameter times another value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from transparity_conformance.identify.fitting.subject import FitError
from transparity_conformance.identify.fitting.values.numbers import SAME, is_same
from transparity_conformance.listening.operation import Operation
from transparity_conformance.oracle.oracle import Arrays


@dataclass(frozen=True, eq=False)
class Linear:
    """A use of a linear map, x Wᵀ + b."""

    at: int
    given: np.ndarray
    made: np.ndarray
    weight: np.ndarray
    name: str
    bias: np.ndarray | None = None
    bias_name: str | None = None

    def over_heads(self, heads: int, head_dim: int) -> list[Linear]:
        """Split a map that runs on each head into parts, such as query, key and value, each with all heads."""
        parts = [self.rows(slice(begin, begin + head_dim)) for begin in range(0, len(self.weight), head_dim)]
        return [dataclasses.replace(each, made=each.made.reshape(-1, heads * len(each.weight))) for each in parts]

    def rows(self, chosen: slice) -> Linear:
        bias = None if self.bias is None else self.bias[chosen]
        return dataclasses.replace(self, made=self.made[:, chosen], weight=self.weight[chosen], bias=bias)


@dataclass(frozen=True, eq=False)
class Sublayer:
    maps: Mapping[str, Linear]
    """The linear maps by the reference's names, from the first, which reads the input, to the last."""

    @property
    def tensor(self) -> str:
        return next(iter(self.maps.values())).name

    @property
    def given(self) -> np.ndarray:
        return next(iter(self.maps.values())).given

    @property
    def result(self) -> tuple[int, np.ndarray]:
        *_, last = self.maps.values()
        return last.at, last.made


def linears(operations: Sequence[Operation], values: Mapping[str, np.ndarray], batch: int) -> list[Linear]:
    """Return all uses of matrices, or of parts of fused matrices, in execution order, rows of the batch first."""
    matrices = {name: value for name, value in values.items() if value.ndim == 2}
    heads = {name: value for name, value in values.items() if value.ndim == 3}
    matrices |= {f"{name}[in]": value.reshape(len(value), -1) for name, value in heads.items()}  # (in, heads, head_dim)
    matrices |= {f"{name}[out]": value.reshape(-1, value.shape[-1]) for name, value in heads.items()}
    # (heads, in, head_dim)
    matrices |= {f"{name}[each]": value.swapaxes(1, 2).reshape(-1, value.shape[1]) for name, value in heads.items()}
    vectors = {name: value for name, value in values.items() if value.ndim == 1}
    if heads:
        vectors |= {name: value.reshape(-1) for name, value in values.items() if value.ndim == 2}
    for name, matrix in list(matrices.items()):
        matrices |= _parts(name, matrix, matrix.shape[1])
        vectors |= _parts(name, vectors.get(name.replace("weight", "bias"), np.empty(0)), matrix.shape[1])
    found: list[Linear] = []
    for index, operation in enumerate(operations):
        given = [operations[i].value for i in dict.fromkeys(operation.inputs)]
        one = next(_products(index, operation.value, given, matrices, vectors), None)
        if one is not None:
            whole = one if one.bias is not None else _with_bias(one, operations, vectors)
            found.append(_batch_first(whole, operations[: index + 1], batch))
    return found


def _parts(name: str, value: np.ndarray, width: int) -> Arrays:
    """Return the parts of a fused map: query, key, value, and key and value together."""
    if value.shape[0] != 3 * width:
        return {}
    ends = ((0, 1), (1, 3), (1, 2), (2, 3))
    return {f"{name}[{begin}:{end}]": value[begin * width : end * width] for begin, end in ends}


def _batch_first(linear: Linear, operations: Sequence[Operation], batch: int) -> Linear:
    for operation in reversed(operations):
        shape = operation.value.shape
        if len(shape) < 3 or operation.value.size != linear.given.size:
            continue
        # time first, perhaps with the heads beside the rows of the batch
        if batch not in shape[:2] and (shape[0] * batch != len(linear.given) or shape[1] % batch):
            continue
        if is_same(operation.value, linear.given):
            if shape[0] == batch:
                return linear
            given, made = (
                rows.reshape(shape[0], batch, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)
                for rows in (linear.given, linear.made)
            )
            return dataclasses.replace(linear, given=given, made=made)
    return linear


def _products(
    index: int, made: np.ndarray, given: Sequence[np.ndarray], matrices: Arrays, vectors: Arrays
) -> Iterator[Linear]:
    for x in given:
        # skip scalars, and inputs of zeros, with which all weights fit
        for name, matrix in matrices.items() if x.ndim and x.any() else ():
            for weight in (matrix, matrix.T):
                out, into = weight.shape
                is_last = x.shape[-1] % into == 0 or (x.ndim > 2 and x.shape[-1] * x.shape[-2] == into)
                if not is_last or x.size % into or made.size * into != x.size * out:
                    continue
                rows, results = x.reshape(-1, into), made.reshape(-1, out)
                few = [0, len(rows) // 2, len(rows) - 1]
                bias_name = _bias(results[few] - rows[few] @ weight.T, vectors)
                bias = vectors.get(bias_name or "")
                if bias_name is not None and is_same(results, rows @ weight.T + (0 if bias is None else bias)):
                    yield Linear(index, rows, results, weight, name, bias, bias_name or None)


def _bias(left: np.ndarray, vectors: Arrays) -> str | None:
    """Return the name of the vector that equals every row, or "" if all rows are 0."""
    added, ones = left.mean(0), np.ones_like(left)
    if is_same(left + 1, ones):
        return ""
    equal = (name for name, vector in vectors.items() if vector.shape == added.shape and is_same(vector, added))
    return next(equal, None) if is_same(left - left[0] + 1, ones) else None


def _with_bias(linear: Linear, operations: Sequence[Operation], vectors: Arrays) -> Linear:
    own = {linear.at}
    for index in range(linear.at + 1, min(linear.at + 6, len(operations))):
        operation = operations[index]
        if not own & set(operation.inputs) or operation.value.size != linear.made.size:
            continue
        made = operation.value.reshape(linear.made.shape)
        name = _bias(made - linear.made, vectors)
        if name:
            return dataclasses.replace(linear, at=index, made=made, bias=vectors[name], bias_name=name)
        own |= set() if name is None else {index}
    return linear


@dataclass(frozen=True, eq=False)
class Columns:
    """The concatenated results of linear maps of one input."""

    maps: Sequence[Linear]

    @property
    def made(self) -> np.ndarray:
        return np.concatenate([each.made for each in self.maps], axis=1)

    def matching(
        self,
        wanted: np.ndarray,
        by: Callable[[np.ndarray], np.ndarray] = lambda x: x,
        times: np.ndarray | None = None,
    ) -> list[int] | None:
        """For each feature of `wanted`, find the column of by(made) · times with equal numbers. Return None unless all
        columns are found and distinct."""
        made, times = by(self.made), np.ones_like(wanted) if times is None else times
        scale = np.abs(wanted).max(initial=0.0)
        # Compare a few rows first, to exclude most candidates quickly.
        few = np.linspace(0, len(wanted) - 1, min(5, len(wanted))).astype(int)
        products = times[few][:, :, None] * made[few][:, None, :]
        near = (np.abs(wanted[few][:, :, None] - products) <= SAME * scale).all(0)
        found = []
        for feature, candidates in enumerate(near):
            options = np.flatnonzero(candidates)
            errors = np.abs(times[:, [feature]] * made[:, options] - wanted[:, [feature]]).max(0, initial=0.0)
            if not len(options) or errors.min() > SAME * scale:
                return None
            found.append(int(options[errors.argmin()]))
        return found if len(set(found)) == len(found) else None

    def linear(self, chosen: Sequence[int]) -> Linear:
        """Return a linear map that computes only the features `chosen`. Raise `FitError` if `chosen` is empty, or if
        the features have different inputs."""
        sizes = np.cumsum([0, *(each.made.shape[1] for each in self.maps)])
        places = [(int(np.searchsorted(sizes, each, "right")) - 1, each) for each in chosen]
        rows = [(self.maps[index], each - int(sizes[index])) for index, each in places]
        if not rows or not all(is_same(one.given, rows[0][0].given) for one, _ in rows):
            names = ", ".join(dict.fromkeys(one.name for one in self.maps))
            raise FitError(
                f"The linear maps before a softmax ({names}) do not divide into a query, a key and a value; "
                "expected the same head_dim for all three."
            )
        (first, begin), (last, end) = rows[0], rows[-1]
        if first is last and list(chosen) == list(range(chosen[0], chosen[-1] + 1)):
            return first.rows(slice(begin, end + 1))
        has_bias = any(one.bias is not None for one, _ in rows)
        bias = np.array([0.0 if one.bias is None else one.bias[row] for one, row in rows]) if has_bias else None
        return Linear(
            first.at,
            first.given,
            self.made[:, list(chosen)],
            np.stack([one.weight[row] for one, row in rows]),
            first.name,
            bias,
            first.bias_name,
        )

    def without(self, *taken: Sequence[int]) -> list[int]:
        used = {each for group in taken for each in group}
        return [each for each in range(self.made.shape[1]) if each not in used]
