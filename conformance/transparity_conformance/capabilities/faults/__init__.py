"""Faults in the capabilities of a model, each with a simulated port that makes it; the likeliest first."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SimulatedFault:
    """A fault in a capability, and the answers of a port with it."""

    id: str
    """Its name in the catalogue; variants of one fault share it."""
    says: str
    """A sentence about the port: its apparent behaviour."""
    simulate: Callable[..., Any]
    """The right simulator of the capability, with this fault among its options."""


def simulated(simulate: Callable[..., Any], *rows: tuple[str, str, dict[str, Any]]) -> tuple[SimulatedFault, ...]:
    """The faults of a simulator: id, sentence, and the options that make each."""
    return tuple(SimulatedFault(id, says, functools.partial(simulate, **options)) for id, says, options in rows)
