"""The parts of every pool of `meta.measure`: trials that the options choose, and measures of their answers."""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Answer = Mapping[str, Any]
"""The outcome of a trial as JSON values."""


class Trial(Protocol):
    """One question to the checker; `str` describes it."""

    def run(self) -> dict[str, Any]:
        """Return the answer."""


@dataclass(frozen=True)
class Share:
    """How many of how many, and which part must be right."""

    title: str
    right: int
    of: int
    target: float = 0.0

    @property
    def is_reached(self) -> bool:
        return self.right >= self.target * self.of

    def __str__(self) -> str:
        target = f" (wanted {self.target:.0%})" if self.target else ""
        return f"{self.title}: {self.right} of {self.of}, {self.right / max(self.of, 1):.1%}{target}"


@dataclass(frozen=True)
class Measure:
    """A share of answers; `judge` returns None for an answer that does not count, and may return (right, of)."""

    title: str
    judge: Callable[[Any, Answer], bool | tuple[int, int] | None]
    target: float = 0.0


def share(title: str, marks: Iterable[object], target: float = 0.0) -> Share:
    """Count the marks that are true."""
    counted = [bool(mark) for mark in marks]
    return Share(title, sum(counted), len(counted), target)


def shares(measures: Iterable[Any], found: Sequence[tuple[Any, Answer]]) -> list[Share]:
    """Return the share of every measure that has something to count."""
    result = []
    for measure in measures:
        marks = [mark for mark in (measure.judge(*each) for each in found) if mark is not None]
        pairs = [mark if isinstance(mark, tuple) else (mark, 1) for mark in marks]
        right, of = (sum(numbers) for numbers in zip(*pairs, strict=True)) if pairs else (0, 0)
        result += [Share(measure.title, right, of, measure.target)] if pairs else []
    return result


def chosen(trials: Iterable[Any], options: argparse.Namespace) -> list[Any]:
    """Return the trials with `--only` in their description, or a sample of them in their order."""
    found = [trial for trial in trials if options.only in str(trial)]
    numbers = random.Random(options.seed).sample(range(len(found)), min(options.sample or len(found), len(found)))
    return [found[number] for number in sorted(numbers)]
