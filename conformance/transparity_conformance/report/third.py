"""A port beside two other implementations: which of the three stands alone."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ThirdComparison:
    """Whether each two of three implementations give the same answers, within rounding."""

    reference: str
    """The name of the first reference, from which the port departs in the report."""
    third: str
    """The name of the second one."""
    port_agrees: bool
    """Whether the port agrees with the first reference."""
    port_agrees_with_third: bool
    references_agree: bool
    probes: int
    """The inputs that all three took."""

    @property
    def stands_alone(self) -> str:
        """`port`, `reference` or `third` for the one that departs from the two others, which agree; else empty."""
        agreeing = (self.references_agree, self.port_agrees_with_third, self.port_agrees)
        names = ("port", "reference", "third")
        return names[agreeing.index(True)] if sum(agreeing) == 1 else ""

    @property
    def sentence(self) -> str:
        """The outcome, as the beginning of a verdict."""
        if self.stands_alone == "port":
            return f"Your port stands alone: {self.reference} and {self.third} agree. "
        if self.stands_alone:
            alone, other = self.reference, self.third
            alone, other = (alone, other) if self.stands_alone == "reference" else (other, alone)
            return f"{alone} stands alone: your port and {other} agree. "
        if self.port_agrees or self.port_agrees_with_third:
            return f"All three agree: your port, {self.reference} and {self.third}. "
        return f"No two of the three agree: your port, {self.reference} and {self.third}. "

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return dataclasses.asdict(self) | {"stands_alone": self.stands_alone, "sentence": self.sentence.strip()}
