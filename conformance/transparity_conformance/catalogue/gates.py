"""What faults change in a gate that is bounded, and in the number that is added to the up projection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.config.fields import usual
from transparity_conformance.catalogue.mixture import bounded
from transparity_conformance.catalogue.sites import Value

Bound = Callable[[float, Value, Value], tuple[Value, Value]]
"""From the limit, the gate and the up projection to both as they are bounded."""

BOUNDS: dict[str, tuple[str, Bound]] = {
    "missing": ("the gate and the up projection are not bounded by {limit:g}", lambda limit, gate, up: (gate, up)),
    "gate alone": (
        "the up projection is not bounded by {limit:g}, only the gate is",
        lambda limit, gate, up: (np.minimum(gate, limit), up),
    ),
    "up alone": (
        "the gate is not bounded by {limit:g}, only the up projection is",
        lambda limit, gate, up: (gate, np.clip(up, -limit, limit)),
    ),
    "both sides": (
        "the gate is bounded from both sides, by {limit:g} and −{limit:g}, not only from above",
        lambda limit, gate, up: (np.clip(gate, -limit, limit), np.clip(up, -limit, limit)),
    ),
    "above alone": (
        "the up projection is bounded only from above by {limit:g}, not from both sides",
        lambda limit, gate, up: (np.minimum(gate, limit), np.minimum(up, limit)),
    ),
}
"""Wrong bounds of a gate, in words and as functions (swiglu_limit)."""


def bounds(config: TransformerConfig) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """The id, the variant, the description and the settings of each fault."""
    limit, offset = config.gate_limit, config.up_offset
    if limit is not None:
        for name, (says, bound) in BOUNDS.items():
            yield "gate-limit", name, f"{says.format(limit=limit)} (swiglu_limit)", {"bounded": bound}
        for other in (each for each in usual("gate_limit") if each != limit):
            says = f"the gate and the up projection are bounded by {other:g} instead of {limit:g} (swiglu_limit)"
            yield "gate-limit", f"{other:g}", says, {"bounded": partial(_bounded_by, other)}
    if not offset:
        return
    yield "up-offset", "missing", f"{offset:g} is not added to the up projection", {"offset": 0.0}
    says = f"{offset:g} is subtracted from the up projection, not added"
    yield "up-offset", "subtracted", says, {"offset": -offset}
    to_gate = lambda function, gate, up: (function(gate) + gate.dtype.type(offset)) * up  # noqa: E731
    says = f"{offset:g} is added to the activated gate, not to the up projection"
    yield "up-offset", "of the gate", says, {"offset": 0.0, "gated": to_gate}


def _bounded_by(limit: float, _: float, gate: Value, up: Value) -> tuple[Value, Value]:
    return bounded(limit, gate, up)
