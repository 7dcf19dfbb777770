"""The limits of the search for causes, which all segments of a port share."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from transparity_conformance import work

WORK = 12.0
"""The initial limit of work. Matching operations and an unsuccessful search take about 30 s for a small model."""

CANDIDATES = 300

STAGES = 4
"""The stages of a search: logits, operations, segments, and unexplained faults."""

STEP = 0.1
"""The work between two progress reports."""

Candidate = TypeVar("Candidate")


class OutOfTime(Exception):  # noqa: N818 - not an error
    """Raised when the work or time is used up; unconfirmed candidates are discarded."""


@dataclass
class Limit:
    read: Callable[[], float]
    amount: float
    end: float = field(init=False)

    def __post_init__(self) -> None:
        self.end = self.read() + self.amount

    @property
    def left(self) -> float:
        return max(self.end - self.read(), 0.0)

    def part(self) -> Limit:
        """Return the limit of one stage: an equal share of the whole limit, or what is left if that is less."""
        return Limit(self.read, min(self.left, self.amount / STAGES))


class Clock:
    """The limits of a search. Work, unlike time, does not depend on the computer's speed. `cap` limits the processor
    time in seconds. `watch(text, done, total)` is called with the work."""

    def __init__(self, cap: float | None = None, watch: Callable[[str, int, int], None] | None = None) -> None:
        self.work = Limit(work.done, WORK)
        self.time = Limit(time.thread_time, float("inf") if cap is None else cap)
        self.tried = self.planned = 0
        self.ran_out = self.is_interrupted = self.is_late = False
        self.watch, self.told = watch, float("-inf")

    def allow(self, of_a_candidate: float) -> None:
        """Extend the limit to about `CANDIDATES` candidates, each of which takes the work `of_a_candidate`."""
        factor = max(CANDIDATES * of_a_candidate / WORK, 1.0)
        self.work.end += self.work.amount * (factor - 1)
        self.work.amount *= factor

    def reserve(self, needed: float) -> None:
        self.work.end += max(needed - self.work.left, 0.0)

    def part(self) -> Clock:
        clock = Clock(watch=self.watch)
        clock.work, clock.time, clock.is_interrupted = self.work.part(), self.time.part(), self.is_interrupted
        return clock

    def begin(self, stages: int = 1) -> None:
        """Start a stage; if less than 1/`stages` of the whole work is left, extend the limit to this share."""
        self.work.end = max(self.work.end, self.work.read() + self.work.amount / stages)

    @property
    def is_over(self) -> bool:
        return self.is_interrupted or self.work.left <= 0 or self.time.left <= 0

    def check(self) -> None:
        if self.is_over:
            self.ran_out, self.is_late = True, self.time.left <= 0
            raise OutOfTime
        spent = self.work.amount - self.work.left
        if self.watch is not None and spent >= self.told:
            self.told = spent + STEP
            self.watch(f"looking for causes, {self.tried:,} candidates tried", int(spent), int(self.work.amount))

    def each(self, candidates: Collection[Candidate]) -> Iterator[Candidate]:
        self.planned += len(candidates)
        for candidate in candidates:
            self.check()
            yield candidate
            self.tried += 1

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """On the first Ctrl-C, end the search as if no work were left. Outside of the main thread, do nothing."""
        handler = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(handler):
            yield
            return

        def interrupt(number: int, frame: Any) -> None:
            self.is_interrupted = True
            signal.signal(signal.SIGINT, handler)

        signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, handler)

    @property
    def note(self) -> str:
        """Return a sentence about why the search ended early, or ""."""
        if not self.ran_out:
            return ""
        known = f"; {self.tried:,} of {self.planned:,} candidates were tried"
        known += ", so an untried candidate may be the cause of an unexplained fault"
        known = known if self.tried < self.planned else ""
        if self.is_interrupted:
            return f"the search for causes was interrupted{known}"
        if self.is_late:
            return f"the search for causes ended after {self.time.amount:g} s{known} (--budget SECONDS searches longer)"
        return f"the search for causes reached its limit of computation{known}"
