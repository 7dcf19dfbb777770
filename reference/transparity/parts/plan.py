"""The plan of tensor parallelism: the axis along which each parameter is distributed over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from transparity.parts.model import model
from transparity.parts.part import WHOLE

if TYPE_CHECKING:
    from transparity.config import TransformerConfig


class Placed(NamedTuple):
    """The placement of a parameter."""

    axis: int | None
    """The axis along which the parameter is sharded; None means that every rank has the whole parameter."""
    fallback: str | None = None
    """Why the parameter is not sharded along its usual axis."""


Plan = Mapping[str, Placed]


def plan(config: TransformerConfig, ranks: int, *, evenly: bool) -> Plan:
    """Place every parameter of `config` on `ranks` tensor ranks.

    A parameter is replicated, with the reason, if a head would be split or a rank would get nothing. With `evenly`, a
    parameter is also replicated if `ranks` does not divide the size of its axis. Token embeddings and the weight of the
    head are then sharded by features instead, if `ranks` divides the number of features.
    """
    return {name: _placed(config, name, shape, ranks, evenly) for name, shape in model(config).parameters.items()}


def report(plan: Plan) -> list[str]:
    """Return a line for each parameter that is not sharded along its usual axis."""
    return [
        f"{name}: {'replicated' if placed.axis is None else 'sharded by features'}, since {placed.fallback}"
        for name, placed in plan.items()
        if placed.fallback
    ]


def _placed(config: TransformerConfig, name: str, shape: tuple[int, ...], ranks: int, evenly: bool) -> Placed:
    cut = model(config).cuts.get(name, WHOLE)
    if ranks == 1 or cut.why_whole or cut.axis is None:
        return Placed(None, cut.why_whole if ranks > 1 else None)
    if cut.heads and cut.heads % ranks:
        return Placed(None, f"the number of {cut.of} ({cut.heads}) is not a multiple of the number of ranks ({ranks})")
    size = shape[cut.axis]
    if evenly and size % ranks:
        by_features = name.endswith(("token_embedding.weight", "head.weight")) and shape[1] % ranks == 0
        return Placed(1 if by_features else None, f"the size {size} is not a multiple of the number of ranks ({ranks})")
    if (ranks - 1) * -(-size // ranks) >= size:
        return Placed(None, f"the size {size} is too small: one of {ranks} ranks would have no elements")
    return Placed(cut.axis)
