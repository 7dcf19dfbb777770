"""The time limit of the search for causes, which all segments of a port share."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TypeVar

BUDGET = 30.0
"""The time, in seconds, after which the search ends."""

WALKS = 20_000
"""The number of runs of the reference after which the search ends. A small model needs about `BUDGET` seconds."""

CANDIDATES = 300
"""The number of candidates per segment for which the time should suffice, approximately."""

STAGES = 4
"""The number of stages of a search: logits, operations, segments, and what remains of logits and segments."""

STEP = 0.1
"""The seconds between two progress reports."""

Candidate = TypeVar("Candidate", covariant=True)


class Candidates(Sized, Iterable[Candidate], Protocol[Candidate]):
    """An iterable of candidates whose number is known."""


class OutOfTime(Exception):  # noqa: N818 - not an error
    """The time of the search has run out. Candidates that are not confirmed are dropped."""


class Clock:
    """The remaining time of a search, and the number of candidates that were tried.

    The clock counts the processor time of this thread, so that a busy machine and an idle machine try equally many
    candidates. `watch` is called with the progress: a text, the seconds spent, and the seconds in total.
    """

    def __init__(self, seconds: float = BUDGET, watch: Callable[[str, int, int], None] | None = None) -> None:
        self.seconds, self.end = seconds, time.thread_time() + seconds
        self.walks = self.tried = self.planned = 0
        self.ran_out = self.is_interrupted = False
        self.watch, self.told = watch, 0.0

    def allow(self, seconds: float) -> None:
        """Extend the limit so that about `CANDIDATES` candidates can be tried, if one candidate takes `seconds`."""
        factor = max(CANDIDATES * seconds / BUDGET, 1.0)
        self.end += self.seconds * (factor - 1)
        self.seconds *= factor

    def part(self) -> Clock:
        """Return a clock for one stage, with a share of the total time, but at most the remaining time."""
        return Clock(min(self.left, self.seconds / STAGES), self.watch)

    def begin(self, stages: int = 1) -> None:
        """Start a stage. Extend the limit if less than the total time divided by `stages` remains."""
        self.end = max(self.end, time.thread_time() + self.seconds / stages)

    @property
    def left(self) -> float:
        """Return the remaining seconds; 0 after the end or after an interruption."""
        return 0.0 if self.is_interrupted else max(self.end - time.thread_time(), 0.0)

    def check(self) -> None:
        """Raise `OutOfTime` if the time is over, or after more than `WALKS` runs of the reference."""
        if self.is_interrupted or time.thread_time() > self.end or self.walks > WALKS:
            self.ran_out = True
            raise OutOfTime
        spent = self.seconds - self.left
        if self.watch is not None and spent > self.told:
            self.told = spent + STEP
            self.watch(f"looking for causes, {self.tried:,} candidates tried", int(spent), int(self.seconds))

    def walk(self) -> None:
        self.walks += 1
        self.check()

    def each(self, candidates: Candidates[Candidate]) -> Iterator[Candidate]:
        self.planned += len(candidates)
        for candidate in candidates:
            self.check()
            yield candidate
            self.tried += 1

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """On the first Ctrl-C, end the search as if the time were over. Python delivers Ctrl-C only to the main thread,
        and only if a handler is set. In other cases, nothing changes."""
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
        """Return a sentence about why the search ended early; empty if the search was complete."""
        if not self.ran_out:
            return ""
        share = f"{self.tried:,} of {self.planned:,} candidates were tried"
        known = f"; {share}, so unexplained faults may have a known cause" if self.tried < self.planned else ""
        if self.is_interrupted:
            return f"the search for causes was interrupted{known}"
        if self.walks > WALKS:
            return f"the search for causes ended after {WALKS:,} runs of the reference{known}"
        return f"the search for causes ended after {self.seconds:g} s{known} (--budget SECONDS searches longer)"
