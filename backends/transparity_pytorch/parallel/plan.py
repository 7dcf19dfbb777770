"""The plan of tensor parallelism: the axis along which each parameter is sharded, from `transparity.parts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch.distributed.tensor import Replicate, Shard

from transparity.config import TransformerConfig
from transparity.parameters import cut_axis, parameter_shapes


class Placed(NamedTuple):
    """The placement of a parameter; `fallback` says why the parameter is not sharded along its usual axis."""

    placement: Shard | Replicate
    fallback: str | None = None


Plan = Mapping[str, Placed]


def plan(config: TransformerConfig, ranks: int) -> Plan:
    """Place every parameter of `config` on `ranks` tensor ranks.

    An axis that `ranks` does not divide is sharded unevenly. A parameter is replicated, with the reason, if a head
    would be split or a rank would get nothing.
    """
    return {name: _placed(config, name, shape, ranks) for name, shape in parameter_shapes(config).items()}


def report(plan: Plan) -> list[str]:
    """Return a line for each parameter that is not sharded along its usual axis."""
    return [f"{name}: replicated, since {placed.fallback}" for name, placed in plan.items() if placed.fallback]


def _placed(config: TransformerConfig, name: str, shape: tuple[int, ...], ranks: int) -> Placed:
    axis, fallback = cut_axis(config, name, ranks)
    if axis is None:
        return Placed(Replicate(), fallback)
    size = shape[axis]
    if (ranks - 1) * -(-size // ranks) >= size:
        return Placed(Replicate(), f"its size {size} is too small: one of {ranks} ranks would have no elements")
    return Placed(Shard(axis))
