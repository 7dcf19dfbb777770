"""A faster linear map for float32 and float16: one product for the whole batch, with the bias added in place.

The reference is evaluated in float64 and complex128, for which x Wᵀ + b itself is computed.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity_numpy.shapes import Parameters

FEW = 64
"""Up to this many rows, reading the weight takes longest. A weight that is the left factor is read in memory order."""


def applies(x: Inexact[Array, "*batch features_in"]) -> bool:
    """Return whether the dtype of `x` is float32 or float16."""
    return x.dtype in (np.float32, np.float16)


def linear(parameters: Parameters, x: Inexact[Array, "*batch features_in"]) -> Inexact[Array, "*batch features_out"]:
    """x Wᵀ + b, or x Wᵀ if `parameters` has no bias."""
    rows, weight = x.reshape(-1, x.shape[-1]), parameters["weight"]
    product = np.ascontiguousarray((weight @ rows.T).T) if len(rows) <= FEW else rows @ weight.T
    if "bias" in parameters:
        # The sum is written into the product, unless the bias has a wider dtype.
        bias = parameters["bias"]
        product = np.add(product, bias, out=product if np.can_cast(bias.dtype, product.dtype) else None)
    return product.reshape(*x.shape[:-1], -1)
