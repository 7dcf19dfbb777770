"""Parameters with a different perturbation in each row of a batch. One forward pass then computes many derivatives, and
reads each matrix, which takes most of a large model's time, only once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from transparity.config import TransformerConfig
from transparity.config.probe_sizes import most_experts
from transparity_conformance.storage.mapped import BLOCK
from transparity_numpy.arithmetic.functional import STEP

Directions = tuple[np.ndarray, ...]
"""One array (directions, size) per axis of a parameter. Direction k is the outer product of the rows k."""


class Leaning(NDArrayOperatorsMixin):
    """A parameter w + i·h·v for each row of the batch, where v is the outer product of the row's vectors. A matrix
    supports the product with its transpose, the elementwise product, and the lookup of rows. A vector supports sums,
    products and the exponential. Other operations would lose the derivative, so they raise `TypeError`. The batch must
    be the first axis of activations. `used` is called whenever an operation uses the parameter."""

    def __init__(
        self, value: Any, vectors: Directions, *, is_transposed: bool = False, used: Callable[[], Any] = lambda: None
    ) -> None:
        if len(vectors) not in (1, 2):
            raise TypeError(f"a parameter has {len(vectors)} axes; expected one or two")
        self.value, self.is_transposed, self.used = value, is_transposed, used
        self.vectors = tuple(vector.astype(value.dtype, copy=False) for vector in vectors)

    @property
    def ndim(self) -> int:
        return len(self.value.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.value.shape[::-1]) if self.is_transposed else tuple(self.value.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.result_type(self.value.dtype, np.complex64)

    @property
    def T(self) -> Leaning:  # noqa: N802 - NumPy's name
        return Leaning(self.value, self.vectors, is_transposed=not self.is_transposed, used=self.used)

    def astype(self, dtype: Any, *, copy: bool = True) -> Leaning:
        if np.dtype(dtype) != self.dtype:
            raise TypeError(f"a perturbed parameter cannot be cast to {dtype}")
        return self

    def __getitem__(self, index: Any) -> Any:
        """Look up rows of a matrix: indices (#batch, …) select (batch, …, in). A vector allows `[:, None, None]`."""
        if self.ndim == 1 and index == (slice(None), None, None):
            return self._leant(self.value[index], self.vectors[0][:, *index])
        is_index = isinstance(index, np.ndarray) and index.dtype.kind in "iu"
        if self.ndim != 2 or self.is_transposed or not is_index:
            raise TypeError(f"a perturbed parameter was indexed by {index!r}; expected rows of a matrix")
        left, right = self.vectors
        rows = np.arange(len(left)).reshape(-1, *[1] * (index.ndim - 1))
        return self._leant(self.value[index], left[rows, index][..., None] * _over(right, index.ndim + 1))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or sum(isinstance(each, Leaning) for each in inputs) != 1:
            raise TypeError(f"a perturbed parameter does not support {ufunc.__name__}")
        if ufunc is np.matmul and inputs[1] is self and self.is_transposed:
            return self._product(np.asarray(inputs[0]))
        if ufunc is np.exp and self.ndim == 1:
            power = np.exp(self.value)
            return Leaning(power, (self.vectors[0] * power,), used=self.used)
        if ufunc is np.negative and self.ndim == 1:
            return Leaning(-self.value, (-self.vectors[0],), used=self.used)
        other: Any = next((each for each in inputs if each is not self), None)
        if ufunc is np.multiply and self.ndim == 2 and not self.is_transposed and np.ndim(other) > 2:
            left, right = (_over(vectors, np.ndim(other) - 1) for vectors in self.vectors)
            return other * self._leant(self.value, left[..., None] * right[..., None, :])
        if ufunc not in (np.add, np.multiply) or self.ndim != 1:
            raise TypeError(f"a perturbed parameter does not support {ufunc.__name__}")
        (vector,) = self.vectors
        if np.ndim(other):
            return ufunc(other, self._leant(self.value, _over(vector, np.ndim(other))))
        leant = (vector * other if ufunc is np.multiply else vector,)
        return Leaning(ufunc(self.value, other), leant, used=self.used)

    def __array_function__(self, function: Any, types: Any, args: Any, named: Any) -> Any:
        if function is np.result_type:
            return np.result_type(*(each.dtype if isinstance(each, Leaning) else each for each in args))
        if function is np.zeros_like and args[0] is self and not named:
            return np.zeros(self.shape, self.dtype)
        if function is np.broadcast_to and self.ndim == 1 and not named:
            return self._leant(np.broadcast_to(self.value, args[1]), _over(self.vectors[0], len(args[1])))
        raise TypeError(f"a perturbed parameter does not support {function.__name__}")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise TypeError("a perturbed parameter cannot be converted to an array")

    def _product(self, x: np.ndarray) -> np.ndarray:
        """Return x · wᵀ + i·h · (x · right) leftᵀ, where `left` and `right` are the perturbation."""
        left, right = self.vectors
        # Multiplying the real and imaginary parts separately takes half the time of a complex product.
        parts = np.stack([x.real, x.imag]) if np.iscomplexobj(x) else x[None]
        found = (parts.reshape(-1, parts.shape[-1]) @ self.value.T).reshape(*parts.shape[:-1], -1)
        product = np.empty(found.shape[1:], self.dtype)
        product.real, product.imag = found[0], found[1] if len(found) > 1 else 0
        along = (x * _over(right, x.ndim)).sum(-1, keepdims=True)
        self.used()
        product += self.dtype.type(1j * STEP) * along * _over(left, x.ndim)
        return product

    def _leant(self, value: np.ndarray, by: np.ndarray) -> np.ndarray:
        self.used()
        return value + self.dtype.type(1j * STEP) * by


def _over(vectors: np.ndarray, ndim: int) -> np.ndarray:
    """Reshape (batch, size) to `ndim` axes: (batch, 1, …, 1, size)."""
    return vectors.reshape(len(vectors), *[1] * (ndim - 2), -1)


def along(gradient: Any, directions: Directions) -> np.ndarray:
    """Return the products of a gradient and each direction in float64, by blocks of rows."""
    if len(directions) == 1:
        return directions[0] @ np.asarray(gradient, np.float64)
    left, right = directions
    found, size = np.zeros(len(left)), max(1, BLOCK // gradient.shape[1])
    for begin in range(0, len(gradient), size):
        rows = slice(begin, begin + size)
        found += (left[:, rows] @ gradient[rows].astype(np.float64) * right).sum(1)
    return found


def repeated(value: np.ndarray, times: int) -> np.ndarray:
    return np.tile(value, (times, *[1] * (value.ndim - 1)))


def of_rows(parts: Directions, mine: Mapping[int, int], count: int, size: int) -> Directions:
    """Return the perturbation of each row in `count` stacked batches of `size` rows; `mine` maps a batch to its
    direction. Other batches are not perturbed."""
    found = [np.zeros((count, part.shape[1])) for part in parts]
    for whole, part in zip(found, parts, strict=True):
        whole[list(mine)] = part[list(mine.values())]
    return tuple(np.repeat(whole, size, axis=0) for whole in found)


def rows_are_apart(config: TransformerConfig, *, training: bool = False) -> bool:
    """Return whether each row can have a perturbation, which batch norm in training and experts prevent."""
    return not (training and config.norm == "batch") and not most_experts(config)
