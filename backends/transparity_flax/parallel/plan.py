"""The plan of tensor parallelism: the axis along which each parameter is sharded, from `transparity.parts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from jax.sharding import PartitionSpec

from transparity.config import TransformerConfig
from transparity.parameters import cut_axis, parameter_shapes

REPLICATED = PartitionSpec()
ROWS, COLUMNS = PartitionSpec("tensor"), PartitionSpec(None, "tensor")
"""Sharding by output features and by input features; a weight is (out, in)."""


class Placed(NamedTuple):
    """The placement of a parameter; `fallback` says why the parameter is not sharded along its usual axis."""

    placement: PartitionSpec
    fallback: str | None = None


Plan = Mapping[str, Placed]


def plan(config: TransformerConfig, ranks: int) -> Plan:
    """Place every parameter of `config` on `ranks` tensor ranks.

    `NamedSharding` splits an axis into equal parts, and no head is split over ranks. If `ranks` does not divide an axis
    or its heads, the parameter is replicated, with the reason. In this case, a table of token embeddings is sharded by
    features.
    """
    return {name: _placed(config, name, shape, ranks) for name, shape in parameter_shapes(config).items()}


def report(plan: Plan) -> list[str]:
    """Return a line for each parameter that is not sharded along its usual axis."""
    return [
        f"{name}: {'sharded by features' if placed.placement == COLUMNS else 'replicated'}, since {placed.fallback}"
        for name, placed in plan.items()
        if placed.fallback
    ]


def _placed(config: TransformerConfig, name: str, shape: tuple[int, ...], ranks: int) -> Placed:
    axis, fallback = cut_axis(config, name, ranks)
    if axis is None:
        return Placed(REPLICATED, fallback)
    size = shape[axis]
    if size % ranks == 0:
        return Placed((ROWS, COLUMNS)[axis])
    by_features = name.endswith(("token_embedding.weight", "head.weight")) and shape[1] % ranks == 0
    return Placed(
        COLUMNS if by_features else REPLICATED, f"its size {size} is not a multiple of the number of ranks ({ranks})"
    )
