"""Faults in what a model does besides its forward pass, each with a simulated port that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SimulatedFault:
    """A fault in a capability, known by what a port with it answers."""

    id: str
    """Its name in the catalogue; variants of one fault share it."""
    says: str
    """What the port seems to do, in words."""
    simulate: Callable[..., Any]
    """The right simulator of the capability, with this fault among its options."""
