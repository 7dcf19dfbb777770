"""The plan of tensor parallelism: along which of its axes each parameter is sharded.

One table serves every configuration. The model knows nothing of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch.distributed.tensor import Replicate, Shard

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes, why_whole

PLACEMENTS: dict[str, Shard] = {
    r".*\.token_embedding\.weight": Shard(0),  # vocabulary
    r".*\.relative_bias\.weight": Shard(1),  # heads
    r".*attention\.(query|key|value|gate)\.(weight|bias)": Shard(0),  # heads
    r".*attention\.sinks": Shard(0),  # heads
    r".*attention\.output\.weight": Shard(1),  # heads
    r".*recurrence\.(query|key|value)(_convolution)?\.(weight|bias)": Shard(0),  # heads
    r".*recurrence\.(decay|beta|gate|gated_norm)\.(weight|bias)": Shard(0),  # heads
    r".*recurrence\.(dt_bias|A_log|D)": Shard(0),  # heads
    r".*recurrence\.output\.weight": Shard(1),  # heads
    r".*\.feed_forward\.(gate|up)\.(weight|bias)": Shard(0),  # hidden features
    r".*\.feed_forward\.down\.weight": Shard(1),  # hidden features
    r"head\.(weight|bias)": Shard(0),  # vocabulary
}
"""Placements of parameters by patterns of their names; what matches none is replicated, as norms are."""


class Placed(NamedTuple):
    """The placement of a parameter, and why it is not the table's; None if it is."""

    placement: Shard | Replicate
    fallback: str | None = None


Plan = Mapping[str, Placed]


def plan(config: TransformerConfig, ranks: int) -> Plan:
    """Place every parameter of `config` on `ranks` tensor ranks. An axis that `ranks` does not divide is sharded
    unevenly, but heads are never cut, and no rank is left without a part: such parameters are replicated, with the
    reason."""
    return {name: _placed(config, name, shape, ranks) for name, shape in parameter_shapes(config).items()}


def report(plan: Plan) -> list[str]:
    """Return a line for each parameter that is not placed as in the table."""
    return [f"{name}: replicated, since {placed.fallback}" for name, placed in plan.items() if placed.fallback]


def _placed(config: TransformerConfig, name: str, shape: tuple[int, ...], ranks: int) -> Placed:
    placement = next((it for pattern, it in PLACEMENTS.items() if re.fullmatch(pattern, name)), None)
    if ranks > 1 and (fallback := why_whole(config, name, ranks)):
        return Placed(Replicate(), fallback)
    if placement is None or ranks == 1:
        return Placed(Replicate())
    size = shape[placement.dim]
    if (ranks - 1) * -(-size // ranks) >= size:
        return Placed(Replicate(), f"{size} leave one of {ranks} ranks without any")
    return Placed(placement)
