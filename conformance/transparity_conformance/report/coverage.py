"""The coverage of a verdict: the compared calls, and the fields of the configuration that they exercise or miss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from transparity.text import SENTENCE, safe

MOST_NAMED = 6
"""The number of fields and sizes that a line for people names; JSON and HTML list all of them."""

FEW = 3
"""Up to this number, lengths and batch sizes are listed one by one."""


@dataclass(frozen=True)
class Coverage:
    """The calls of a port that were compared with the reference. A verdict holds only for these calls."""

    lengths: tuple[int, ...] = ()
    """The lengths of the sequences, in tokens."""
    batches: tuple[int, ...] = ()
    """The numbers of rows in a call."""
    calls: int = 0
    """The number of calls of one object, each compared with the same call of a new object."""
    features: tuple[str, ...] = ()
    """Fields of the configuration that matter: another value would have changed the result of at least one compared
    call."""
    untested: tuple[str, ...] = ()
    """Fields and probes that no compared call exercises, each with the reason; a port with such fields cannot agree."""
    sizes: tuple[str, ...] = ()
    """The ranges of all other sizes, such as `head_dim 8 to 34`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "untested", tuple(safe(reason, SENTENCE) for reason in self.untested))

    def as_dict(self) -> dict[str, Any]:
        return {field.name: _listed(getattr(self, field.name)) for field in fields(self)}

    @property
    def rate(self) -> float:
        """The largest rate of wrong calls that is possible, at 95 % confidence, after n right calls: 1 − 0.05^(1/n)."""
        return 1 - 0.05 ** (1 / self.calls) if self.calls else 1.0

    @property
    def inputs(self) -> str:
        """The sizes of the inputs: `25 lengths from 1 to 1,025, 6 batch sizes from 1 to 13`; empty if unknown."""
        parts = [_values(self.lengths, "length")] * bool(self.lengths)
        return ", ".join(parts + [_values(self.batches, "batch size")] * bool(self.batches))

    @property
    def line(self) -> str:
        """The coverage in one line for people; empty if nothing is known."""
        parts = [self.inputs] * bool(self.inputs) + [*self.sizes]
        if self.calls:
            parts.append(f"{self.calls:,} calls of one object (at most one in {1 / self.rate:.0f} differs, 95 %)")
        if self.features:
            parts.append(f"{len(self.features):,} fields of the configuration")
        if self.untested:
            parts.append(f"untested: {_some(self.untested)}")
        return ", ".join(parts)


def range_of(name: str, values: Iterable[int]) -> str:
    """Return a text such as `head_dim 8 to 34`."""
    return f"{name} {_range(tuple(values))}"


def _range(values: tuple[int, ...]) -> str:
    least, most = min(values), max(values)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _values(values: tuple[int, ...], noun: str) -> str:
    """Return `lengths 1, 5`, or `25 lengths from 1 to 1,025` for more than `FEW` values."""
    if len(values) > FEW:
        return f"{len(values):,} {noun}s from {min(values):,} to {max(values):,}"
    return f"{noun}{'s' * (len(values) > 1)} {', '.join(f'{value:,}' for value in values)}"


def _some(names: tuple[str, ...]) -> str:
    return "; ".join(names[:MOST_NAMED]) + (f"; and {len(names) - MOST_NAMED} more" if names[MOST_NAMED:] else "")


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
