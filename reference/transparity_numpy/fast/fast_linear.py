"""Faster linear maps for float32: `x @ W.T` as one product for all rows, with the bias added in place.

NumPy computes `x @ W.T` with one product per row of the batch, and each product reads the whole weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity_numpy.shapes import Parameters

FEW = 64
"""Largest number of rows for which the weight is the left factor.

With few rows, reading the weight takes most time, and a left factor is read in memory order.
"""


class FastWeight(np.ndarray):
    """A weight that computes `x @ W.T` as one product for all rows of `x`; indexing and sums return plain arrays.

    If `x` is a plain array, Python calls this class's `__rmatmul__`, because the class is a subclass of NumPy's array.
    """

    def __rmatmul__(self, x: Inexact[Array, "*batch features_in"]) -> Inexact[Array, "*batch features_out"]:  # type: ignore[override] # NumPy's takes anything
        rows, weight = x.reshape(-1, x.shape[-1]), self.view(np.ndarray)
        product = np.ascontiguousarray((weight.T @ rows.T).T) if len(rows) <= FEW else rows @ weight
        return product.reshape(*x.shape[:-1], -1)

    def __getitem__(self, index: Any) -> Any:
        return self.view(np.ndarray)[index]

    def __array_wrap__(self, array: Array, context: Any = None, return_scalar: bool = False) -> Any:
        return array


class FastBias(np.ndarray):
    """A bias that is added in place, which saves the time to clear new memory for large logits.

    The sum overwrites the array on the left, which must be a product that nothing else uses.
    """

    def __radd__(self, product: Inexact[Array, "*batch features_out"]) -> Inexact[Array, "*batch features_out"]:  # type: ignore[override] # NumPy's takes anything
        return np.add(product, self.view(np.ndarray), out=product)


def packed(parameters: Parameters) -> dict[str, Array]:
    """Return the same arrays, with float32 matrices as `FastWeight`, and their biases and `head.bias` as `FastBias`."""
    weights = {
        name: value.view(FastWeight)
        for name, value in parameters.items()
        if value.ndim == 2 and value.dtype == np.float32
    }
    biases = {"head.bias", *(name.removesuffix("weight") + "bias" for name in weights)} & parameters.keys()
    fast = {name: parameters[name].view(FastBias) for name in biases if parameters[name].dtype == np.float32}
    return {**parameters, **weights, **fast}
