"""Faults in the capabilities of a model, each with a simulated port that makes it."""

from __future__ import annotations

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
