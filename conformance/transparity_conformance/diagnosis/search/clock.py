"""The time that a search for causes may take, over all segments of a port."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol, TypeVar

BUDGET = 15.0
"""Seconds: half of the 30 s in which a check ends whose divergence has no name."""

Candidate = TypeVar("Candidate", covariant=True)


class Candidates(Sized, Iterable[Candidate], Protocol[Candidate]):
    """Anything with a length that can be iterated over."""


class OutOfTime(Exception):  # noqa: N818 - no error
    """The search has taken its time; nothing that it has found so far is certain."""


class Clock:
    """The time left, and the candidates that were tried until it ran out.

    Processor time of this thread: on a busy machine the same candidates are tried as on an idle one.
    """

    def __init__(self, seconds: float = BUDGET) -> None:
        self.seconds, self.end = seconds, time.thread_time() + seconds
        self.tried = self.planned = 0
        self.ran_out = False

    @property
    def left(self) -> float:
        """Seconds until it runs out; 0 if it has."""
        return max(self.end - time.thread_time(), 0.0)

    def check(self) -> None:
        """Raise `OutOfTime` if no time is left."""
        if time.thread_time() > self.end:
            self.ran_out = True
            raise OutOfTime

    def each(self, candidates: Candidates[Candidate]) -> Iterator[Candidate]:
        """Yield every candidate and count it as tried."""
        self.planned += len(candidates)
        for candidate in candidates:
            self.check()
            yield candidate
            self.tried += 1

    @property
    def note(self) -> str:
        """The state in which the search ended, as a sentence; empty if it came to its end."""
        if not self.ran_out:
            return ""
        return (
            f"the search for causes ended after {self.seconds:g} s; {self.tried:,} of {self.planned:,} candidates "
            "tried: what is unexplained may have a name (--budget SECONDS searches longer)"
        )
