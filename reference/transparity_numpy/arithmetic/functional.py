"""Functions that PyTorch and JAX provide and NumPy lacks, such as softmax, and derivatives by the complex step.

Activation functions and softmax preserve the dtype of their input. Inputs may be complex, because the complex step
computes derivatives from complex inputs. No function therefore takes an absolute value or compares complex numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity_numpy.shapes import Parameters

STEP = 1e-20
"""The size of the complex step. The error of a derivative is of the order of STEP², far below rounding."""


def linear(parameters: Parameters, x: Inexact[Array, "*batch features_in"]) -> Inexact[Array, "*batch features_out"]:
    """x Wᵀ + b, or x Wᵀ if `parameters` has no bias."""
    product = x @ parameters["weight"].T
    return product + parameters["bias"] if "bias" in parameters else product


def cast_like(value: Inexact[Array, "*batch"], *given: Array) -> Inexact[Array, "*batch"]:
    """Return `value` in the common dtype of all arguments, which may be complex."""
    return value.astype(np.result_type(*given), copy=False)


def softmax(scores: Inexact[Array, "*batch keys"]) -> Inexact[Array, "*batch keys"]:
    """exp(scores) / Σ exp(scores) over the last axis, shifted by the largest score so that nothing overflows."""
    exponentials = np.exp(scores - scores.real.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def log_softmax(scores: Inexact[Array, "*batch keys"]) -> Inexact[Array, "*batch keys"]:
    """log(softmax(scores)) over the last axis, computed without the logarithm of a number that underflowed to 0."""
    shifted = scores - scores.real.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def relu(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """max(x, 0), where the sign of a complex number is the sign of its real part; NaN stays NaN."""
    zero = x.dtype.type(0)
    return np.where(x.real <= 0, zero, x) if np.iscomplexobj(x) else np.maximum(x, zero)


def gelu(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x · Φ(x), where Φ is the normal distribution function (Hendrycks and Gimpel 2016).

    NumPy has no error function, so Python's `math.erf` is applied to each element. For a complex x, the imaginary part
    is computed from the derivative.
    """
    real = x.real / math.sqrt(2)
    erf = np.fromiter(map(math.erf, real.ravel().tolist()), float, real.size).reshape(real.shape)
    phi: Array = (1 + erf.astype(real.dtype)) / 2
    if np.iscomplexobj(x):
        phi = phi + 1j * x.imag * np.exp(-real * real) / math.sqrt(2 * math.pi)
    return (x * phi).astype(x.dtype, copy=False)


def gelu_tanh(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))): the tanh approximation of GELU (Hendrycks and Gimpel 2016, §2)."""
    number = x.dtype.type
    return x * (1 + np.tanh(number(math.sqrt(2 / math.pi)) * (x + number(0.044715) * x * x * x))) / 2


def gelu_quick(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x · σ(1.702 x): the sigmoid approximation of GELU (Hendrycks and Gimpel 2016, §2)."""
    return x * sigmoid(x * x.dtype.type(1.702))


def silu(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """x · σ(x) (Hendrycks and Gimpel 2016, §4)."""
    return x * sigmoid(x)


def sigmoid(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """1 / (1 + e^−x), computed from e^x or e^−x, whichever does not overflow."""
    positive = x.real > 0
    power = np.exp(np.where(positive, -x, x))
    return np.where(positive, x.dtype.type(1), power) / (1 + power)


def softplus(x: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """log(1 + e^x), computed from e^x or e^−x, whichever does not overflow."""
    positive = x.real > 0
    return np.where(positive, x, x.dtype.type(0)) + np.log1p(np.exp(np.where(positive, -x, x)))


def as_precise_as(x: Array, value: Inexact[Array, "*batch"]) -> Inexact[Array, "*batch"]:
    """Return `value` in the precision of `x`; complex numbers stay complex."""
    dtype = np.result_type(x.dtype, np.complex64) if np.iscomplexobj(value) else x.real.dtype
    return value.astype(dtype, copy=False)


def derivative(
    function: Callable[[Mapping[str, Array]], Array], parameters: Parameters, direction: Mapping[str, Array]
) -> Inexact[Array, "*batch"]:
    """Return the derivative along `direction`: Im f(p + i·h·v) / h (Squire and Trapp 1998).

    This formula has no difference of similar numbers, so the derivative is as exact as `function`. Parameters that
    `direction` lacks are constant.
    """
    moved = {name: parameters[name] + 1j * STEP * toward for name, toward in direction.items()}
    value = function({**parameters, **moved})
    return value.imag / value.real.dtype.type(STEP)


def nest(parameters: Parameters) -> dict[str, Any]:
    """Return a nested dict from flat names: `tree["encoder"]["layers"]["0"]`."""
    tree: dict[str, Any] = {}
    for name, value in parameters.items():
        *scopes, leaf = name.split(".")
        branch = tree
        for scope in scopes:
            branch = branch.setdefault(scope, {})
        branch[leaf] = value
    return tree
