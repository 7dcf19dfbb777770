"""Products as XLA does them soonest. With few rows, as decoding has them, one takes as long as its weight takes to be
read, which is least where it stands in front, by its outputs; Flax holds it by its inputs. With many, as learning has
them, they have to be one axis. PyTorch packs for the same reasons, and NumPy is given weights by their outputs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array
from jaxtyping import Float

from transparity.config import TransformerConfig
from transparity_flax.parameters import State
from transparity_flax.transformer import Transformer


class Form:
    """What a model is without its numbers, by which JAX knows the program that it compiled. It asks at every call: to
    hash what Flax takes for it is a millisecond, for twelve layers, and this is hashed once."""

    def __init__(self, model: Transformer) -> None:
        self.graph = nnx.graphdef(model)
        self.hash = hash(self.graph)

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and self.graph == other.graph

    def model(self, state: State) -> Transformer:
        """The model with the numbers in `state`."""
        return nnx.merge(self.graph, state)


Split = tuple[TransformerConfig, Form, State]
"""A model taken apart once, not for every token: what it is, and the numbers in it."""


def packed(model: Transformer) -> Split:
    """The model as `generate` and `beam_search` take it; it holds its kernels once more, the other way around."""
    twin = nnx.clone(model)
    for linear in _linears(twin):
        kernel = linear.kernel.get_value()
        linear.kernel.set_value(jax.device_put(np.ascontiguousarray(np.asarray(kernel).T), kernel.sharding))
        linear.dot_general = _weight_in_front
    return model.config, Form(twin), nnx.state(twin)


def learning(model: Transformer) -> Transformer:
    """The same model with linears that have their gradients sooner; all parameters are those of `model`."""
    twin = nnx.merge(*nnx.split(model))
    for linear in _linears(twin):
        linear.dot_general = _rows_in_one_axis
    return twin


def _linears(model: Transformer) -> list[nnx.Linear]:
    modules = (module for _, module in nnx.iter_graph(model) if isinstance(module, nnx.Linear))
    return [linear for linear in modules if hasattr(linear, "kernel")]  # a tied head has none


def _weight_in_front(
    x: Float[Array, "*batch features_in"], weight: Float[Array, "features_out features_in"], _: Any, **named: Any
) -> Float[Array, "*batch features_out"]:
    """W xᵀ, turned: x Wᵀ. Its arguments are those that `nnx.Linear` has for `dot_general`, whose kernel is Wᵀ."""
    product = jax.lax.dot_general(weight, x, (((1,), (x.ndim - 1,)), ((), ())), **named)
    return jnp.moveaxis(product, 0, -1)


def _rows_in_one_axis(
    x: Float[Array, "*batch features_in"], kernel: Float[Array, "features_in features_out"], _: Any, **named: Any
) -> Float[Array, "*batch features_out"]:
    """x W of a matrix. The gradient by W sums over all rows: over two axes, XLA would first copy what it multiplies,
    turned."""
    product = jax.lax.dot_general(x.reshape(-1, x.shape[-1]), kernel, (((1,), (0,)), ((), ())), **named)
    return product.reshape(*x.shape[:-1], kernel.shape[1])
