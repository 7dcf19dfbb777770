"""The causal convolution before a recurrence, over the last few positions of each feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import linear, silu
from transparity_numpy.shapes import Hidden
from transparity_numpy.state.cache import Cache, update_inputs
from transparity_numpy.state.context import LayerContext


def causal_convolution(
    weight: Inexact[Array, "features width"],
    x: Inexact[Array, "batch length features"],
    before: Inexact[Array, "batch earlier features"],
    bias: Inexact[Array, " features"] | None = None,
) -> Inexact[Array, "batch length features"]:
    """yₜ = Σᵢ weightᵢ · xₜ₋ᵢ + bias, over the last `width` positions of each feature; `before` has the positions before
    `x`."""
    width, x = weight.shape[1], np.concatenate([before, x], axis=1)
    length = x.shape[1] - width + 1
    shifted = np.stack([x[:, i : i + length] for i in range(width)], axis=-1)
    return (shifted * weight).sum(axis=-1) + (0 if bias is None else bias)


def convolve(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Hidden,
    context: LayerContext,
    cache: Cache | None = None,
) -> Inexact[Array, "batch length features"]:
    """silu(convolution(x Wᵀ)), which is the `query`, `key` or `value` of all heads."""
    x, kernel = linear(parameters[name], x), parameters[f"{name}_convolution"]
    before = np.zeros((len(x), config.convolution_width - 1, x.shape[-1]), x.dtype)
    if cache is not None:
        before = update_inputs(cache, name, x, context.valid_lengths)
    return silu(causal_convolution(kernel["weight"], x, before, kernel.get("bias")))
