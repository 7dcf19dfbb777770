"""Faster linear maps for float32: `x @ W.T` as one product for all rows.

NumPy computes `x @ W.T` with one product per row of the batch, and each product reads the whole weight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float32, Inexact
from numpy import ndarray as Array

from transparity_numpy.shapes import Parameters

FEW = 64
"""Up to this many rows, reading the weight takes longest. A weight that is the left factor is read in memory order."""


class FastWeight(np.ndarray):
    """A weight whose products `x @ W.T` are computed at once for all rows of `x`; its rows are plain arrays.

    Python calls `__rmatmul__` of a subclass before the product of the base class.
    """

    def __rmatmul__(self, x: Inexact[Array, "*batch features_in"]) -> Inexact[Array, "*batch features_out"]:  # type: ignore[override] # NumPy's takes anything
        rows, weight = x.reshape(-1, x.shape[-1]), self.view(np.ndarray)
        product = np.ascontiguousarray((weight.T @ rows.T).T) if len(rows) <= FEW else rows @ weight
        return product.reshape(*x.shape[:-1], -1)

    def __getitem__(self, index: Any) -> Any:
        return self.view(np.ndarray)[index]


def packed(parameters: Parameters) -> dict[str, Float32[Array, "*shape"]]:
    """Return the same arrays, with float32 matrices as `FastWeight`."""
    return {
        name: value.view(FastWeight) if value.ndim == 2 and value.dtype == np.float32 else value
        for name, value in parameters.items()
    }
