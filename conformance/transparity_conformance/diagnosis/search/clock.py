"""The time that a search for causes may take, over all segments of a port."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TypeVar

BUDGET = 30.0
"""Seconds in which the search ends at a divergence that has no name."""

WALKS = 20_000
"""Walks after which the search ends, on a machine of any speed: as many as `BUDGET` allows for where 3,186 of them took
5.3 s."""

CANDIDATES = 300
"""About as many are tried at a segment before there is none left."""

STAGES = 4
"""The logits are searched, then the operations, then the segments, then what the logits and the segments lack."""

STEP = 0.1
"""Seconds between two announcements of progress."""

Candidate = TypeVar("Candidate", covariant=True)


class Candidates(Sized, Iterable[Candidate], Protocol[Candidate]):
    """Anything with a length that can be iterated over."""


class OutOfTime(Exception):  # noqa: N818 - no error
    """The search has taken its time; nothing that it has found so far is certain."""


class Clock:
    """The time left, and the candidates that were tried until it ran out.

    Processor time of this thread: on a busy machine the same candidates are tried as on an idle one.

    Args:
        seconds: the time for the search.
        watch: is told of its progress, in candidates and seconds.
    """

    def __init__(self, seconds: float = BUDGET, watch: Callable[[str, int, int], None] | None = None) -> None:
        self.seconds, self.end = seconds, time.thread_time() + seconds
        self.walks = self.tried = self.planned = 0
        self.ran_out = self.is_interrupted = False
        self.watch, self.told = watch, 0.0

    def allow(self, seconds: float) -> None:
        """Give the search more time where one candidate takes `seconds`: as many are tried as of a small model."""
        factor = max(CANDIDATES * seconds / BUDGET, 1.0)
        self.end += self.seconds * (factor - 1)
        self.seconds *= factor

    def part(self) -> Clock:
        """A clock for one of the stages, with its part of the time, or with what is left."""
        return Clock(min(self.left, self.seconds / STAGES), self.watch)

    def begin(self, stages: int = 1) -> None:
        """Leave at least the time for one of so many stages: what was spent before did not search."""
        self.end = max(self.end, time.thread_time() + self.seconds / stages)

    @property
    def left(self) -> float:
        """Seconds until it runs out; 0 if it has, or was interrupted."""
        return 0.0 if self.is_interrupted else max(self.end - time.thread_time(), 0.0)

    def check(self) -> None:
        """Raise `OutOfTime` if no time is left."""
        if self.is_interrupted or time.thread_time() > self.end:
            self.ran_out = True
            raise OutOfTime
        spent = self.seconds - self.left
        if self.watch is not None and spent > self.told:
            self.told = spent + STEP
            self.watch(f"looking for causes, {self.tried:,} candidates tried", int(spent), int(self.seconds))

    def walk(self) -> None:
        """Count a walk of the search; raise `OutOfTime` if it was the last one, or if no time is left."""
        self.check()
        self.walks += 1
        if self.walks > WALKS:
            self.ran_out = True
            raise OutOfTime

    def each(self, candidates: Candidates[Candidate]) -> Iterator[Candidate]:
        """Yield every candidate and count it as tried."""
        self.planned += len(candidates)
        for candidate in candidates:
            self.check()
            yield candidate
            self.tried += 1

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """End the search at Ctrl-C, as if its time were over; a second one is raised as ever.

        Python delivers Ctrl-C to the main thread, and there only if it has a handler.
        """
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
        """The state in which the search ended, as a sentence; empty if it came to its end."""
        if not self.ran_out:
            return ""
        tried = f"{self.tried:,} of {self.planned:,} candidates tried: what is unexplained may have a name"
        if self.is_interrupted:
            return f"the search for causes was interrupted; {tried}"
        if self.walks > WALKS:
            return f"the search for causes ended after {WALKS:,} walks; {tried}"
        return f"the search for causes ended after {self.seconds:g} s; {tried} (--budget SECONDS searches longer)"
