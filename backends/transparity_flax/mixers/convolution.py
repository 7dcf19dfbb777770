"""The causal convolution before a recurrence, over the last few positions of each feature."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from transparity_flax.shapes import Hidden
from transparity_flax.state.cache import Cache, update_inputs
from transparity_flax.state.context import LayerContext


def causal_convolution(
    weight: Float[Array, "features width"],
    x: Float[Array, "batch length features"],
    before: Float[Array, "batch earlier features"],
    bias: Float[Array, " features"] | None = None,
) -> Float[Array, "batch length features"]:
    """yₜ = Σᵢ weightᵢ · xₜ₋ᵢ + bias, over the last `width` positions of each feature; `before` has the positions before
    `x`."""
    width, x = weight.shape[1], jnp.concatenate([before, x], axis=1)
    length = x.shape[1] - width + 1
    shifted = jnp.stack([x[:, i : i + length] for i in range(width)], axis=-1)
    return (shifted * weight).sum(axis=-1) + (0 if bias is None else bias)


def convolve(
    module: Any, name: str, x: Hidden, context: LayerContext, cache: Cache | None = None
) -> Float[Array, "batch length features"]:
    """silu(convolution(x Wᵀ)), which is the `query`, `key` or `value` of all heads."""
    x, kernel = getattr(module, name)(x), getattr(module, f"{name}_convolution")
    before = jnp.zeros((len(x), module.config.convolution_width - 1, x.shape[-1]), x.dtype)
    if cache is not None:
        before = update_inputs(cache, name, x, context.valid_lengths)
    bias = kernel.bias[...] if module.config.convolution_bias else None
    return jax.nn.silu(causal_convolution(kernel.kernel[...].T, x, before, bias))
