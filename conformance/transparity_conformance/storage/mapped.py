"""Matrices that stay in their file. A product with a matrix reads blocks of rows, and keeps one block in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from safetensors import safe_open

from transparity.limits.lazy import InBlocks

BLOCK = 2**23
"""The number of elements in a block. A block takes 64 MB in float64."""

LARGE = 5_000_000
"""The matrices of a model with at least this number of parameters stay in their files."""

Change = Callable[[np.ndarray], np.ndarray]


def blocks_of(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, Mapped):
        yield from (block for _, block in value.blocks())
    else:
        yield np.asarray(value)


def have_equal_numbers(one: Any, other: Any) -> bool:
    both = isinstance(one, Mapped) and isinstance(other, Mapped) and one.is_transposed == other.is_transposed
    if not both or one.shape != other.shape:
        return np.array_equal(one, other)
    return all(np.array_equal(a, b) for a, b in zip(blocks_of(one), blocks_of(other), strict=True))


class Mapped(NDArrayOperatorsMixin, InBlocks):
    """A matrix in a safetensors file, which NumPy treats as an array.

    `x @ W.T` and `W @ x` read a block at a time; a look-up reads rows. Other operations read the whole matrix.

    Args:
        path: the file.
        name: the name of the tensor in the file, which has two axes and is float32, float16 or bfloat16.
        shape: the shape of the tensor in the file.
        casts: dtypes to which the values are rounded, and functions that change the values, in the order of their use.
            The last entry is the dtype of the matrix.
        is_transposed: whether the matrix is the transpose of the tensor.
        rows: for a tensor that safetensors cannot read, a function that reads rows; the repr still shows `path` and
            `name`.
    """

    ndim = 2

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str,
        shape: tuple[int, int],
        casts: tuple[np.dtype[Any] | Change, ...] = (np.dtype(np.float32),),
        *,
        is_transposed: bool = False,
        rows: Callable[[slice], np.ndarray] | None = None,
    ) -> None:
        self.path, self.name, self.stored, self.casts, self.is_transposed = path, name, shape, casts, is_transposed
        self.rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        return self.stored[::-1] if self.is_transposed else self.stored

    @property
    def dtype(self) -> np.dtype[Any]:
        last = self.casts[-1]
        assert isinstance(last, np.dtype)
        return last

    @property
    def size(self) -> int:
        return self.stored[0] * self.stored[1]

    @property
    def T(self) -> Mapped:  # noqa: N802 - NumPy's name
        return self._as(self.casts, is_transposed=not self.is_transposed)

    def astype(self, dtype: Any, *, copy: bool = False) -> Mapped:
        """Return the matrix with the dtype `dtype`; the values are rounded when they are read."""
        dtype = np.dtype(dtype)
        widened = np.promote_types(self.dtype, dtype) == dtype and len(self.casts) == 1
        casts = (dtype,) if widened else (*self.casts, dtype)  # the earlier cast was exact
        return self._as(casts, is_transposed=self.is_transposed)

    def _as(self, casts: tuple[np.dtype[Any] | Change, ...], *, is_transposed: bool) -> Mapped:
        return Mapped(self.path, self.name, self.stored, casts, is_transposed=is_transposed, rows=self.rows)

    def changed(self, change: Change) -> Mapped:
        """Return the matrix with an elementwise change, which is applied when a block is read."""
        return self._as((*self.casts, change, self.dtype), is_transposed=self.is_transposed)

    def blocks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield the converted blocks of rows of the tensor in the file, each with the slice of its rows."""
        count, width = self.stored
        rows = max(1, BLOCK // max(1, width))
        for begin in range(0, count, rows):
            place = slice(begin, min(begin + rows, count))
            yield place, self._read(place)

    def _read(self, place: slice) -> np.ndarray:
        value = self._as_stored(place)
        for cast in self.casts:
            value = value.astype(cast, copy=False) if isinstance(cast, np.dtype) else cast(value)
        return value

    def _as_stored(self, place: slice) -> np.ndarray:
        if self.rows is not None:
            return self.rows(place)
        with safe_open(self.path, framework="numpy") as file:  # closed again to free the mapped memory
            value: np.ndarray = file.get_slice(self.name)[place]
        return value

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> np.ndarray:
        if not self.is_transposed and isinstance(index, slice) and index.step in (None, 1):
            return self._read(slice(*index.indices(len(self))))
        if self.is_transposed or not (isinstance(index, np.ndarray) and index.dtype.kind in "iu"):
            return np.asarray(self)[index]
        found, places = np.unique(index, return_inverse=True)
        rows = [self._read(slice(row, row + 1)) for row in np.where(found < 0, found + len(self), found).tolist()]
        return np.concatenate(rows)[places.reshape(index.shape)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.size <= BLOCK:
            whole = self._read(slice(0, self.stored[0])).astype(dtype or self.dtype, copy=False)
        else:
            whole = np.empty(self.stored, dtype or self.dtype)
            for place, block in self.blocks():
                whole[place] = block
        return whole.T if self.is_transposed else whole

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if ufunc is np.matmul and method == "__call__" and not options:
            left, right = inputs
            if right is self and isinstance(left, np.ndarray) and left.ndim > 1:
                return self._times_rows(left)
            if left is self and not left.is_transposed and isinstance(right, np.ndarray) and right.ndim == 2:
                product = np.empty((self.shape[0], right.shape[1]), np.result_type(self.dtype, right.dtype))
                for place, block in self.blocks():
                    product[place] = block @ right
                return product
        arrays = [np.asarray(each) if isinstance(each, Mapped) else each for each in inputs]
        return getattr(ufunc, method)(*arrays, **options)

    def _times_rows(self, x: np.ndarray) -> np.ndarray:
        rows = x.reshape(-1, x.shape[-1])
        if not self.is_transposed:
            return (rows @ np.asarray(self)).reshape(*x.shape[:-1], -1)
        product = np.empty((len(rows), self.shape[1]), np.result_type(self.dtype, x.dtype))
        for place, block in self.blocks():
            product[:, place] = rows @ block.T
        return product.reshape(*x.shape[:-1], -1)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `copy` and `pickle` look for such attributes
            raise AttributeError(name)
        return getattr(np.asarray(self), name)

    def __repr__(self) -> str:
        return f"Mapped({self.name!r} of {self.path}, {self.shape}, {self.dtype})"
