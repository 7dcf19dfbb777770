"""Parameters and batches distributed over a mesh; each device reads only its slices of the parameters."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transparity.config import TransformerConfig
from transparity.parts.plan import Plan
from transparity_flax.port import shapes_of
from transparity_flax.state.parameters import rounded, variables
from transparity_flax.transformer import Transformer

Source = Mapping[str, Any]
"""The arrays of parameters, or the slices that a safetensors file provides, by name."""


def shard(config: TransformerConfig, mesh: Mesh, plan: Plan, source: Source, dtype: str) -> Transformer:
    """Return a model distributed over `mesh`; each device reads only its slices of the parameters from `source`.

    Parameters are replicated over the mesh axis `data`, and split over the axis `tensor` as `plan` says.
    """
    model: Transformer = nnx.merge(*shapes_of(Transformer, config), copy=True)
    for path, name, variable in variables(model):
        axis, shape, transposed = plan[name].axis, variable.get_value().shape, path[-1] == "kernel"
        if axis is not None and transposed:
            axis = 1 - axis
        placement = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, "tensor")
        read = functools.partial(_read, source[name], dtype, transposed)
        variable.set_value(jax.make_array_from_callback(shape, NamedSharding(mesh, placement), read))
    return model


def _read(source: Any, dtype: str, transposed: bool, index: tuple[slice, ...] | None) -> np.ndarray:
    assert index is not None
    if transposed:
        return rounded(np.asarray(source[index[::-1]]).T, dtype)
    return rounded(source[index], dtype)


def split_rows(mesh: Mesh, values: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Distribute the rows of every array over the data axis of the mesh.

    Copies of the first row fill up the batch until the number of data ranks divides the number of rows. The caller
    drops the results of these copies.
    """
    axis, sharding = mesh.shape["data"], NamedSharding(mesh, PartitionSpec("data"))
    rows = {}
    for name, value in values.items():
        more = -len(value) % axis
        rows[name] = jax.device_put(np.concatenate([value, *[value[:1]] * more]), sharding)
    return rows


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())
