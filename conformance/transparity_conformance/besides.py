"""What was found beside the forward pass: of a loss, of gradients, of generation or of steps."""

from __future__ import annotations

from dataclasses import dataclass

from transparity_conformance.verdict import Fault, Held


@dataclass(frozen=True)
class Besides:
    """Claims, faults, and what was not compared."""

    claims: tuple[Held, ...] = ()
    faults: tuple[Fault, ...] = ()
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: Besides) -> Besides:
        return Besides(
            self.claims + other.claims,
            self.faults + other.faults,
            self.not_compared + other.not_compared,
            self.notes + other.notes,
        )


def not_compared(*reasons: str) -> Besides:
    """Nothing but the reasons."""
    return Besides(not_compared=reasons)
