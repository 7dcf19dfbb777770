"""The specification's parameters in Flax: one table of names; kernels are (in, out), weights (out, in)."""

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
"""The variables that the specification names. A model made with `rngs` also has the keys of its dropout."""

NAMES = {
    "kernel": "weight",
    "embedding": "weight",
    "scale": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
    "router_score_bias": "router_score_bias",
    "sinks": "sinks",
    "A_log": "A_log",
    "dt_bias": "dt_bias",
    "D": "D",
}


def load(model: nnx.Module, parameters: Mapping[str, np.ndarray], dtype: Any) -> None:
    """Put `parameters` into `model` in `dtype`; the model's own may be abstract shapes.

    Raises `ParameterError` for a parameter that the model lacks, and for a wrong shape, which Flax would accept
    silently.
    """
    left = set(parameters) - {name for _, name, _ in variables(model)}
    if left:
        raise ParameterError(f"{', '.join(sorted(left))}: the model has no such parameters")
    for path, name, variable in variables(model):
        own = variable.get_value().shape
        value = np.asarray(parameters[name])
        value = value.T if path[-1] == "kernel" else value
        if value.shape != own:
            raise ParameterError(f"{name}: {value.shape} does not fit the model's own shape {own}")
        variable.set_value(jax.device_put(rounded(value, dtype)))


def dump(model: nnx.Module) -> dict[str, np.ndarray]:
    """Parameters of `model` under the specification's names, as NumPy arrays."""
    return {name: to_numpy(value) for name, value in named(nnx.state(model, HELD)).items()}


def named(state: State) -> dict[str, Any]:
    """Arrays of `state` under the specification's names and in its orientation."""
    arrays = {path: variable.get_value() for path, variable in nnx.to_flat_state(state)}
    return {_name(path): value.T if path[-1] == "kernel" else value for path, value in arrays.items()}


def rounded(value: Any, dtype: Any) -> np.ndarray:
    """Copy of `value` in `dtype`, made by NumPy: JAX would compile a program per shape. JAX may read an array in place,
    and the caller may write to it, so a copy is needed."""
    with np.errstate(over="ignore"):
        return np.array(value, jnp.dtype(dtype))


def to_numpy(value: Any) -> np.ndarray:
    """`value` as a NumPy array; bfloat16, which NumPy lacks, becomes float32 without loss."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == jnp.bfloat16 else array


def variables(model: nnx.Module) -> list[tuple[tuple[Any, ...], str, nnx.Variable[Any]]]:
    """Path, the specification's name, and value of every parameter and statistic of `model`."""
    return [(path, _name(path), node) for path, node in nnx.iter_graph(model) if isinstance(node, HELD)]


def _name(path: tuple[Any, ...]) -> str:
    """The name of a parameter, without the name of the stack's input module (`input`)."""
    return ".".join([*(str(part) for part in path[:-1] if part != "input"), NAMES[path[-1]]])
