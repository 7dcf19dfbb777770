"""The time limit of the search for causes; all segments of a port share it."""

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
"""The runs of the reference after which the search ends; a small model makes them in about `BUDGET` seconds."""

CANDIDATES = 300
"""The approximate number of candidates per segment."""

STAGES = 4
"""The number of stages: the logits, the operations, the segments, and the remaining logits and segments."""

STEP = 0.1
"""The seconds between two progress reports."""

Candidate = TypeVar("Candidate", covariant=True)


class Candidates(Sized, Iterable[Candidate], Protocol[Candidate]):
    """A sized iterable of candidates."""


class OutOfTime(Exception):  # noqa: N818 - not an error
    """The search's time is over; unconfirmed candidates are discarded."""


class Clock:
    """The remaining time of a search, and the number of tried candidates.

    The clock counts this thread's processor time, so that a busy machine tries as many candidates as an idle one.
    `watch` receives the progress: a text, the seconds spent, and all seconds.
    """

    def __init__(self, seconds: float = BUDGET, watch: Callable[[str, int, int], None] | None = None) -> None:
        self.seconds, self.end = seconds, time.thread_time() + seconds
        self.walks = self.tried = self.planned = 0
        self.ran_out = self.is_interrupted = False
        self.watch, self.told = watch, 0.0

    def allow(self, seconds: float) -> None:
        """Extend the time limit so that it suffices for about `CANDIDATES` candidates of `seconds` each."""
        factor = max(CANDIDATES * seconds / BUDGET, 1.0)
        self.end += self.seconds * (factor - 1)
        self.seconds *= factor

    def part(self) -> Clock:
        """Return a clock with the time of one stage, or with the remaining time if less remains."""
        return Clock(min(self.left, self.seconds / STAGES), self.watch)

    def begin(self, stages: int = 1) -> None:
        """Start a stage, which gets at least the total time divided by `stages`."""
        self.end = max(self.end, time.thread_time() + self.seconds / stages)

    @property
    def left(self) -> float:
        """Return the remaining seconds; 0 after the end or an interruption."""
        return 0.0 if self.is_interrupted else max(self.end - time.thread_time(), 0.0)

    def check(self) -> None:
        """Raise `OutOfTime` if no time is left, or after more than `WALKS` runs of the reference."""
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
        """On the first Ctrl-C, end the search as if its time were over. Python delivers Ctrl-C only to the main thread,
        and only if it has a handler; otherwise nothing changes."""
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
        """Return a sentence on how the search ended early; empty if it was complete."""
        if not self.ran_out:
            return ""
        share = f"{self.tried:,} of {self.planned:,} candidates were tried"
        known = f"; {share}, so unexplained faults may have a known cause" if self.tried < self.planned else ""
        if self.is_interrupted:
            return f"the search for causes was interrupted{known}"
        if self.walks > WALKS:
            return f"the search for causes ended after {WALKS:,} runs of the reference{known}"
        return f"the search for causes ended after {self.seconds:g} s{known} (--budget SECONDS searches longer)"
