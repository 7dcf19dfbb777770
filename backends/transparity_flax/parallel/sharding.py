"""A model over a mesh: its parameters with named shardings by a plan, each device's slices of them, and its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transparity.config import TransformerConfig
from transparity_flax.parallel.plan import Plan
from transparity_flax.port import shapes_of
from transparity_flax.state.parameters import rounded, variables
from transparity_flax.transformer import Transformer

Source = Mapping[str, Any]
"""What can be sliced, by the names of parameters: arrays, or the slices of a safetensors file."""


def shard(config: TransformerConfig, mesh: Mesh, plan: Plan, source: Source, dtype: str) -> Transformer:
    """Return a model of which each device holds its share alone, read from `source` slice by slice.

    Args:
        mesh: Its axes are `data`, over which parameters are replicated, and `tensor`.
    """
    model: Transformer = nnx.merge(*shapes_of(Transformer, config), copy=True)
    for path, name, variable in variables(model):
        sharding, turned = NamedSharding(mesh, plan[name].placement), path[-1] == "kernel"

        def read(index: tuple[slice, ...], name: str = name, turned: bool = turned) -> np.ndarray:
            held = np.asarray(source[name][index[::-1] if turned else index])
            return rounded(held.T if turned else held, dtype)

        if turned:
            sharding = NamedSharding(mesh, PartitionSpec(*[*sharding.spec, None, None][:2][::-1]))
        shape = variable.get_value().shape
        variable.set_value(jax.make_array_from_callback(shape, sharding, read))
    return model


def split_rows(mesh: Mesh, values: Mapping[str, np.ndarray]) -> dict[str, jax.Array]:
    """Distribute rows over the data axis. Shardings are even: the last ranks repeat the first row where it does not
    divide the rows, and their results are left out."""
    axis, sharding = mesh.shape["data"], NamedSharding(mesh, PartitionSpec("data"))
    rows = {}
    for name, value in values.items():
        more = -len(value) % axis
        rows[name] = jax.device_put(np.concatenate([value, *[value[:1]] * more]), sharding)
    return rows


def replicated(mesh: Mesh) -> NamedSharding:
    """Sharding of what every device has."""
    return NamedSharding(mesh, PartitionSpec())
