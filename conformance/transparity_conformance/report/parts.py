"""Parts of a report: what the verdict covers, comparisons of ranks and of a third implementation, and times."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transparity.text import SENTENCE, safe
from transparity_conformance.report.comparison import Compared
from transparity_conformance.report.formatting import count, format_share, some

MOST_NAMED = 6
"""The largest number of untested fields and probes in a line of text."""

FEW = 3
"""A text lists at most this number of lengths or batch sizes, and otherwise their range."""


@dataclass(frozen=True)
class Coverage:
    """The calls that were compared; the verdict holds only for such calls."""

    lengths: tuple[int, ...] = ()
    source_lengths: tuple[int, ...] = ()
    """The lengths of the encoder's inputs in an encoder-decoder; `lengths` are then the decoder's."""
    batches: tuple[int, ...] = ()
    calls: int = 0
    """The number of calls of one built model. Each call was compared with the same call of a newly built model."""
    features: tuple[str, ...] = ()
    """The fields whose change would change the result of a compared call."""
    untested: tuple[str, ...] = ()
    """Untested fields and probes, with reasons; none for the verdict `agrees`."""
    sizes: tuple[str, ...] = ()
    """Ranges of the models' sizes, such as `head_dim 8 to 34`."""
    images: tuple[str, ...] = ()
    """The shapes of images, such as `3 × 32 × 64`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "untested", tuple(safe(reason, SENTENCE) for reason in self.untested))

    @property
    def rate(self) -> float:
        """The largest rate of wrong calls that n right calls leave possible, at 95 % confidence: 1 − 0.05^(1/n)."""
        return 1 - 0.05 ** (1 / self.calls) if self.calls else 1.0

    @property
    def inputs(self) -> str:
        """`25 lengths from 1 to 1,025, 6 batch sizes from 1 to 13`."""
        target = "target length" if self.source_lengths else "length"
        named = ((self.source_lengths, "source length"), (self.lengths, target), (self.batches, "batch size"))
        images = [f"images of {', '.join(self.images)}"] * bool(self.images)
        return ", ".join([*(_values(values, name) for values, name in named if values), *images])

    @property
    def line(self) -> str:
        parts = [self.inputs] * bool(self.inputs) + [*self.sizes]
        if self.calls:
            parts.append(
                f"{count(self.calls, 'call')} of one object "
                f"(95 % confidence: at most 1 call in {int(1 / self.rate)} differs)"
            )
        if self.features:
            parts.append(f"{count(len(self.features), 'field')} of the configuration")
        if self.untested:
            parts.append(f"untested: {some(self.untested, MOST_NAMED, '; ')}")
        return ", ".join(parts)


def range_of(name: str, values: Collection[int]) -> str:
    return f"{name} {' to '.join(f'{value:,}' for value in dict.fromkeys((min(values), max(values))))}"


def _values(values: tuple[int, ...], noun: str) -> str:
    """Return `lengths 1, 5`, or `25 lengths from 1 to 1,025` for more than `FEW` values."""
    if len(values) > FEW:
        return f"{len(values):,} {noun}s from {min(values):,} to {max(values):,}"
    return f"{noun}{'s' * (len(values) > 1)} {', '.join(f'{value:,}' for value in values)}"


@dataclass(frozen=True)
class RanksComparison(Compared):
    """A comparison of several ranks with a single rank of the same code."""

    count: int
    one_rank: Literal["agrees", "diverges", "inconclusive"]
    """Whether one rank returns the results of `count` ranks; `inconclusive` if one rank could not run the code."""
    error: float = 0.0
    budget: float = 0.0
    """The largest difference that rounding explains: the sum of both runs' budgets."""
    where: str = ""
    probe: str = ""
    reason: str = ""
    """Why the code could not run on a single rank."""
    placements: Mapping[str, str] = field(default_factory=dict)
    """The placements that the port declares for its activations; the checker has verified these placements."""

    @property
    def sentence(self) -> str:
        if self.one_rank == "agrees":
            return f"1 rank and {self.count} ranks of the same code agree. "
        if self.one_rank == "inconclusive":
            return f"The port ran on {self.count} ranks, but a run of the same code on 1 rank could not be compared. "
        how = f"by {self.error:.2g} ({format_share(self.share)} its tolerance)"
        if not math.isfinite(self.error):
            how = "in its shape, or in values that are not finite,"
        return f"The output on {self.count} ranks differs from the output on 1 rank {how} at {self.where}:  "


@dataclass(frozen=True)
class ThirdComparison:
    reference: str
    third: str
    port_agrees: bool
    port_agrees_with_third: bool
    references_agree: bool
    probes: int
    """The number of inputs that all three implementations accepted."""

    @property
    def stands_alone(self) -> str:
        """`port`, `reference` or `third` if only this implementation differs from the other two."""
        agreeing = (self.references_agree, self.port_agrees_with_third, self.port_agrees)
        names = ("port", "reference", "third")
        return names[agreeing.index(True)] if sum(agreeing) == 1 else ""

    @property
    def sentence(self) -> str:
        if self.stands_alone == "port":
            return f"Your port differs from the other two: {self.reference} and {self.third} agree.  "
        if self.stands_alone:
            alone, other = self.reference, self.third
            alone, other = (alone, other) if self.stands_alone == "reference" else (other, alone)
            return f"{alone} differs from the other two: your port and {other} agree.  "
        if self.port_agrees or self.port_agrees_with_third:
            are_equal = self.port_agrees and self.port_agrees_with_third and self.references_agree
            how = "All three agree" if are_equal else "Two pairs agree, and one pair differs"
            return f"{how}: your port, {self.reference} and {self.third}. "
        return f"No two of the three agree: your port, {self.reference} and {self.third}. "

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"stands_alone": self.stands_alone, "sentence": self.sentence.strip()}


@dataclass(frozen=True)
class Timing:
    seconds: float = 0.0
    """Wall time."""
    processor: float = 0.0
    """Processor time of the checker, including a port in the checker's process."""
    port: float | None = None
    """Processor time of the port's own processes; None without such processes, or if unknown."""

    def since(self, before: Timing) -> Timing:
        """Return the time since `before`. The times of processes that ended since `before` are missing."""
        port = None if self.port is None else max(0.0, self.port - (before.port or 0.0))
        return Timing(self.seconds - before.seconds, self.processor - before.processor, port)

    def as_dict(self) -> dict[str, float | None]:
        return {name: None if seconds is None else round(seconds, 3) for name, seconds in vars(self).items()}


class Stopwatch:
    """Measures the stages of a check. `port` returns the processor seconds of the port's processes."""

    def __init__(self, port: Callable[[], float | None]) -> None:
        self.port = port
        self.stages: dict[str, Timing] = {}

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        before = self.read()
        try:
            yield
        finally:
            self.stages[stage] = self.read().since(before)

    def read(self) -> Timing:
        return Timing(time.monotonic(), time.process_time(), self.port())
