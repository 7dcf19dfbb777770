"""What `torch.nn.functional` and `jax.nn` bring along and NumPy does not: the one file without a twin.

Every function keeps the dtype that it is given; complex numbers flow through, because derivatives are taken along
the imaginary axis (the complex step), so nothing here takes an absolute value or compares complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

FEW = 64
"""So few rows take less time than to read the weight does, which goes by as it lies if it stands in front."""

STEP = 1e-20
"""What is left out is of the order of its square: nothing, beside 1, in any precision."""


def linear(
    parameters: Mapping[str, Array], x: Inexact[Array, "*batch features_in"]
) -> Inexact[Array, "*batch features_out"]:
    """x Wᵀ + b; `bias` may be absent. The whole batch is one product, and what it gives is added to where it lies."""
    rows, weight = x.reshape(-1, x.shape[-1]), parameters["weight"]
    product = rows @ weight.T if len(rows) > FEW else np.ascontiguousarray((weight @ rows.T).T)
    if "bias" in parameters:
        product = _in_place(np.add, product, parameters["bias"])
    return product.reshape(*x.shape[:-1], -1)


def softmax(scores: Inexact[Array, "*batch keys"]) -> Inexact[Array, "*batch keys"]:
    """exp(scores) / Σ exp(scores) over the last axis, shifted by the largest score so that nothing overflows."""
    exponentials = scores - scores.real.max(axis=-1, keepdims=True)
    np.exp(exponentials, out=exponentials)
    return _in_place(np.divide, exponentials, exponentials.sum(axis=-1, keepdims=True))


def log_softmax(scores: Inexact[Array, "*batch keys"]) -> Inexact[Array, "*batch keys"]:
    """The logarithm of `softmax`, without taking the logarithm of a number that underflowed."""
    shifted = scores - scores.real.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def relu(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """max(x, 0), by the sign of the real part; what is not a number stays so."""
    zero = x.dtype.type(0)
    return np.where(x.real <= 0, zero, x) if np.iscomplexobj(x) else np.maximum(x, zero)


def gelu(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x · Φ(x), Φ the normal distribution's (Hendrycks and Gimpel 2016). NumPy has no error function; Python has one
    for a number, and along the imaginary axis it goes on by its derivative."""
    real = x.real / math.sqrt(2)
    phi = (1 + np.vectorize(math.erf, [float])(real).astype(real.dtype)) / 2
    if np.iscomplexobj(x):
        phi = phi + 1j * x.imag * np.exp(-real * real) / math.sqrt(2 * math.pi)
    return (x * phi).astype(x.dtype, copy=False)


def gelu_tanh(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))): `gelu`, nearly (Hendrycks and Gimpel 2016, §2)."""
    number = x.dtype.type
    return x * (1 + np.tanh(number(math.sqrt(2 / math.pi)) * (x + number(0.044715) * x * x * x))) / 2


def gelu_quick(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x · σ(1.702 x): `gelu`, roughly (Hendrycks and Gimpel 2016, §2)."""
    return x * sigmoid(x * x.dtype.type(1.702))


def silu(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x · σ(x) (Hendrycks and Gimpel 2016, §4)."""
    return x * sigmoid(x)


def sigmoid(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """1 / (1 + e^−x), by the power that does not overflow."""
    positive = x.real > 0
    power = np.exp(np.where(positive, -x, x))
    return np.where(positive, x.dtype.type(1), power) / (1 + power)


def _in_place(operation: np.ufunc, x: Array, other: Array) -> Array:
    """The result in the place of `x`, which nobody needs any more: a new place in memory costs more than the numbers
    in it. Unless it is complex and `x` is not."""
    return operation(x, other, out=x if np.can_cast(other.dtype, x.dtype) else None)


def derivative(
    function: Callable[[Mapping[str, Array]], Array],
    parameters: Mapping[str, Array],
    direction: Mapping[str, Array],
) -> Inexact[Array, "*batch"]:
    """The derivative of `function` at `parameters` along `direction`: Im f(p + i·h·v) / h (Squire and Trapp 1998).

    No difference is taken, so it is as exact as the function itself. `direction` has the names and shapes of the
    parameters that move.
    """
    moved = {name: parameters[name] + 1j * STEP * toward for name, toward in direction.items()}
    value = function({**parameters, **moved})
    return value.imag / value.real.dtype.type(STEP)


def nest(parameters: Mapping[str, Array]) -> dict[str, Any]:
    """Flat names as a tree: `tree["encoder"]["layers"]["0"]`, as a module holds its modules."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        *scopes, leaf = name.split(".")
        branch = tree
        for scope in scopes:
            branch = branch.setdefault(scope, {})
        branch[leaf] = value
    return tree
