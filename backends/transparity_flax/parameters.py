"""The specification's parameters in Flax: one table of names, and kernels are (in, out) where weights are (out, in)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transparity.errors import ParameterError

State = nnx.State[Any, Any]

NAMES = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def load(model: nnx.Module, parameters: Mapping[str, np.ndarray], dtype: Any) -> None:
    """Put `parameters` into `model`, whose own may be no more than shapes, in `dtype`.

    Raises `ParameterError` for what the model does not have, and where a shape is not its own, which Flax would take
    without a word.
    """
    variables = list(_variables(model))
    left = set(parameters) - {_name(path) for path, _ in variables}
    if left:
        raise ParameterError(f"{', '.join(sorted(left))}: the model has no such parameters")
    for path, variable in variables:
        name, own = _name(path), variable.get_value().shape
        value = np.asarray(parameters[name])
        value = value.T if path[-1] == "kernel" else value
        if value.shape != own:
            raise ParameterError(f"{name}: {value.shape} cannot take the place of the model's own {own}")
        variable.set_value(jax.device_put(rounded(value, dtype)))


def dump(model: nnx.Module) -> dict[str, np.ndarray]:
    """The parameters of `model` under the specification's names, as NumPy arrays."""
    return {name: to_numpy(value) for name, value in named(nnx.state(model)).items()}


def named(state: State) -> dict[str, Any]:
    """What `state` holds, JAX's arrays or NumPy's, under the specification's names and in its orientation."""
    arrays = {path: variable.get_value() for path, variable in nnx.to_flat_state(state)}
    return {_name(path): value.T if path[-1] == "kernel" else value for path, value in arrays.items()}


def rounded(value: Any, dtype: Any) -> np.ndarray:
    """A copy of `value` in `dtype`, by NumPy: JAX would compile a program for every shape. It has to be a copy, for JAX
    reads an array where it lies, and the caller may write there."""
    with np.errstate(over="ignore"):
        return np.array(value, jnp.dtype(dtype))


def to_numpy(value: Any) -> np.ndarray:
    """`value` in NumPy, which has no bfloat16 of its own: that comes back as float32, without loss."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array


def _variables(model: nnx.Module) -> list[tuple[tuple[Any, ...], nnx.Variable[Any]]]:
    return [(path, node) for path, node in nnx.iter_graph(model) if isinstance(node, nnx.Variable)]


def _name(path: tuple[Any, ...]) -> str:
    return ".".join([*map(str, path[:-1]), NAMES[path[-1]]])
