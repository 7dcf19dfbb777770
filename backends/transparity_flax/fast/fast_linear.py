"""Faster linear maps for XLA on a CPU: decoding stores weights as (out, in), and training puts all rows on one axis.

With few rows, as in decoding, a linear map takes as long as reading the weight. A weight stored as (out, in) is read
fastest, but Flax stores (in, out). With many rows, gradients are fastest if all rows are on one axis.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity_flax.fast.structure import SplitModel, split
from transparity_flax.transformer import Transformer


def packed(model: Transformer) -> SplitModel:
    """Transpose the kernels in a copy of `model`, and split this copy for `generate` and `beam_search`."""
    twin = nnx.clone(model)
    for linear in _linears(twin):
        kernel = linear.kernel.get_value()
        linear.kernel.set_value(jax.device_put(np.ascontiguousarray(np.asarray(kernel).T), kernel.sharding))
        linear.dot_general = _weight_in_front
    return model.config, *split(twin)


def for_training(model: Transformer) -> Transformer:
    """Return a copy of `model` whose linear maps have faster gradients; the copy has the same parameters."""
    twin = nnx.merge(*nnx.split(model))
    for linear in _linears(twin):
        linear.dot_general = _rows_in_one_axis
    return twin


def _linears(model: Transformer) -> list[nnx.Linear]:
    modules = (module for _, module in nnx.iter_graph(model) if isinstance(module, nnx.Linear))
    return [linear for linear in modules if hasattr(linear, "kernel")]  # a tied head has no kernel


def _weight_in_front(
    x: Float[Array, "*batch features_in"], weight: Float[Array, "features_out features_in"], _: Any, **named: Any
) -> Float[Array, "*batch features_out"]:
    """Return x Wᵀ, computed as (W xᵀ)ᵀ; `packed` makes `nnx.Linear` call this function."""
    product = jax.lax.dot_general(weight, x, (((1,), (x.ndim - 1,)), ((), ())), **named)
    return jnp.moveaxis(product, 0, -1)


def _rows_in_one_axis(
    x: Float[Array, "*batch features_in"], kernel: Float[Array, "features_in features_out"], _: Any, **named: Any
) -> Float[Array, "*batch features_out"]:
    """Return x W as a product of two matrices.

    With two axes of rows, XLA would transpose an operand to compute the gradient with respect to W.
    """
    product = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), kernel, (((1,), (0,)), ((), ())), **named)
    return product.reshape(*x.shape[:-1], kernel.shape[1])
