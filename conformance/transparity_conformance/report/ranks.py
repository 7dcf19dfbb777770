"""Comparisons of a port with the same code on one rank, and with a third implementation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transparity_conformance.report.comparison import share
from transparity_conformance.report.formatting import format_share


@dataclass(frozen=True)
class RanksComparison:
    """The comparison of several ranks with one rank of the same code, made before that with the reference."""

    count: int
    """The number of ranks."""
    one_rank: Literal["agrees", "diverges", "inconclusive"]
    """Whether one rank of the same code gives the same results; `inconclusive` if one rank could not be run."""
    error: float = 0.0
    """The largest difference."""
    budget: float = 0.0
    """The largest difference that rounding explains, which is the sum of two budgets."""
    where: str = ""
    """The tap with the largest share of its budget."""
    probe: str = ""
    reason: str = ""
    """Why one rank could not be run."""
    placements: Mapping[str, str] = field(default_factory=dict)
    """The declared placements; the checker verified them and gathered the shards."""

    @property
    def sentence(self) -> str:
        """The result as the start of a verdict."""
        if self.one_rank == "agrees":
            return f"1 rank and {self.count} ranks of the same code agree. "
        if self.one_rank == "inconclusive":
            return f"{self.count} ranks were run; one rank of the same code could not be compared with them. "
        used = format_share(share(self.error, self.budget))
        by = (
            f"{self.error:.2g} ({used} its tolerance)" if math.isfinite(self.error) else "its shape or infinite numbers"
        )
        return f"The output on {self.count} ranks differs from the output on 1 rank by {by} at {self.where}:  "

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"placements": dict(self.placements)}


@dataclass(frozen=True)
class ThirdComparison:
    """Whether each two of three implementations agree within rounding."""

    reference: str
    """The name of the first reference, with which the report compares the port."""
    third: str
    """The name of the second reference."""
    port_agrees: bool
    """Whether the port agrees with the first reference."""
    port_agrees_with_third: bool
    references_agree: bool
    probes: int
    """The number of inputs that all three implementations accepted."""

    @property
    def stands_alone(self) -> str:
        """`port`, `reference` or `third` if that one differs while the other two agree; otherwise empty."""
        agreeing = (self.references_agree, self.port_agrees_with_third, self.port_agrees)
        names = ("port", "reference", "third")
        return names[agreeing.index(True)] if sum(agreeing) == 1 else ""

    @property
    def sentence(self) -> str:
        """The result as the start of a verdict."""
        if self.stands_alone == "port":
            return f"Your port differs from the other two: {self.reference} and {self.third} agree.  "
        if self.stands_alone:
            alone, other = self.reference, self.third
            alone, other = (alone, other) if self.stands_alone == "reference" else (other, alone)
            return f"{alone} differs from the other two: your port and {other} agree.  "
        if self.port_agrees or self.port_agrees_with_third:
            return f"All three agree: your port, {self.reference} and {self.third}. "
        return f"No two of the three agree: your port, {self.reference} and {self.third}. "

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"stands_alone": self.stands_alone, "sentence": self.sentence.strip()}
