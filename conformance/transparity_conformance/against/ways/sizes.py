"""The sizes of calls that cross every number of the reference's configuration."""

from __future__ import annotations

from transparity_conformance.against.reference import Reference
from transparity_conformance.oracle.reach.models import AFFORDABLE
from transparity_conformance.oracle.reach.thresholds import LONGEST


def longest_of(reference: Reference) -> int:
    """Return the longest text: that of the positions, of what takes about 0.2 s, or `LONGEST`."""
    positions = getattr(reference.model.config, "max_position_embeddings", None) or LONGEST
    size = sum(each.numel() for each in reference.model.parameters())
    return max(1, min(LONGEST, int(positions), int(AFFORDABLE / max(size, 1))))


def crossed(reference: Reference, longest: int) -> list[int]:
    """Return the whole numbers of the configuration that a text may be longer than, whatever they mean: a window, a
    chunk, an original length."""
    return sorted({int(number) for number in reference.numbers if number.is_integer() and 1 < number <= longest})
