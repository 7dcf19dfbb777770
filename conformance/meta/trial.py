"""The parts that all pools of `meta.measure` share: trials, measures, and the selection by options."""

import argparse
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from meta.pool.bug import View

Answer = Mapping[str, Any]
"""The outcome of a trial, as JSON values."""


@dataclass(frozen=True)
class Trial:
    """One test of the checker. `run` returns the outcome. A measure counts trials of one `kind` together, and may
    compare the outcome with the right answer, `wanted`."""

    name: str
    run: Callable[[], dict[str, Any]]
    kind: str = ""
    wanted: Any = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Share:
    """The number of right answers, the number of all answers, and the share that must be right."""

    title: str
    right: int
    of: int
    target: float = 0.0

    @property
    def is_reached(self) -> bool:
        return self.right >= self.target * self.of


@dataclass(frozen=True)
class Measure:
    """A share of the answers to trials of one kind and view; an empty kind or view means all.

    `judge` returns whether an answer is right, or (number of right parts, number of parts), or None if the answer does
    not count."""

    title: str
    judge: Callable[[Any, Answer], bool | tuple[int, int] | None]
    target: float = 0.0
    kind: str = ""
    view: View | Literal[""] = ""

    def mark(self, trial: Any, answer: Answer) -> bool | tuple[int, int] | None:
        counts = (not self.kind or trial.kind == self.kind) and (not self.view or trial.view == self.view)
        return self.judge(trial, answer) if counts else None


def share(title: str, marks: Iterable[object], target: float = 0.0) -> Share:
    counted = [bool(mark) for mark in marks]
    return Share(title, sum(counted), len(counted), target)


def shares(measures: Iterable[Measure], found: Sequence[tuple[Any, Answer]]) -> list[Share]:
    """Return the share of right answers for each measure that judges at least one of the answers."""
    result = []
    for measure in measures:
        marks = [mark for mark in (measure.mark(*each) for each in found) if mark is not None]
        pairs = [mark if isinstance(mark, tuple) else (mark, 1) for mark in marks]
        right, of = (sum(numbers) for numbers in zip(*pairs, strict=True)) if pairs else (0, 0)
        result += [Share(measure.title, right, of, measure.target)] if pairs else []
    return result


def chosen(trials: Iterable[Any], options: argparse.Namespace) -> list[Any]:
    found = [trial for trial in trials if options.only in str(trial)]
    numbers = random.Random(options.seed).sample(range(len(found)), min(options.sample or len(found), len(found)))
    return [found[number] for number in sorted(numbers)]
