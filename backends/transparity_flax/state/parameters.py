"""Parameters under the names of `transparity.parameters`, loaded into Flax modules.

Kernels of linear maps and convolutions have their axes in reverse order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from transparity.errors import ParameterError

State = nnx.State[Any, Any]

HELD = (nnx.Param, nnx.BatchStat)
"""The kinds of variables that are parameters or running statistics; a model may also have random keys for dropout."""

NAMES = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "mean": "running_mean",
    "var": "running_var",
}
"""Maps Flax's name of a variable to the last part of the variable's name in `transparity.parameters`."""


def load(model: nnx.Module, parameters: Mapping[str, np.ndarray], dtype: Any, device: Any = None) -> None:
    """Put `parameters` into `model` with this `dtype`, on `device`; the model's own parameters may be abstract.

    Raises `ParameterError` for an unknown name, and for a wrong shape, which Flax would accept silently.
    """
    left = set(parameters) - {name for _, name, _ in variables(model)}
    if left:
        raise ParameterError(f"The model has no parameters {', '.join(sorted(left))}.")
    for path, name, variable in variables(model):
        value, own = np.asarray(parameters[name]), variable.get_value().shape
        own, placed = (own[::-1], value.T) if path[-1] == "kernel" else (own, value)
        if value.shape != own:
            raise ParameterError(f"Parameter {name!r} has the shape {value.shape}, not {own}.")
        variable.set_value(jax.device_put(rounded(placed, dtype), device))


def dump(model: nnx.Module) -> dict[str, np.ndarray]:
    """Return the parameters of `model` as NumPy arrays by the names of `transparity.parameters`."""
    return {name: to_numpy(value) for name, value in named(nnx.state(model, HELD)).items()}


def named(state: State) -> dict[str, Any]:
    """Return the arrays of `state` by the names of `transparity.parameters`, with matrices as (out, in)."""
    arrays = {path: variable.get_value() for path, variable in nnx.to_flat_state(state)}
    return {_name(path): value.T if path[-1] == "kernel" else value for path, value in arrays.items()}


def rounded(value: Any, dtype: Any) -> np.ndarray:
    """Return a copy of `value` with this `dtype`.

    NumPy makes the copy, because JAX would compile a program for each shape. A copy is needed because JAX may use the
    caller's memory, and the caller may write to it.
    """
    with np.errstate(over="ignore"):
        return np.array(value, jnp.dtype(dtype))


def to_numpy(value: Any) -> np.ndarray:
    """Return `value` as a NumPy array; bfloat16, which NumPy lacks, becomes float32 without loss."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array


def variables(model: nnx.Module) -> list[tuple[tuple[Any, ...], str, nnx.Variable[Any]]]:
    """Return the path, the name and the variable of every parameter and running statistic of `model`."""
    return [(path, _name(path), node) for path, node in nnx.iter_graph(model) if isinstance(node, HELD)]


def _name(path: tuple[Any, ...]) -> str:
    """Return the name of a parameter in `transparity.parameters`, which lacks the part `input` of Flax's path."""
    return ".".join([*(str(part) for part in path[:-1] if part != "input"), NAMES.get(path[-1], path[-1])])
