"""The time of each stage of a check: wall time, and processor time of the checker and of the port."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds of a stage, or seconds since a start."""

    seconds: float = 0.0
    """Wall time."""
    processor: float = 0.0
    """Processor time of the checker; it includes a port that runs in the same process."""
    port: float | None = None
    """Processor time of the port's own processes; None if there are none, or if the system does not report it."""

    def since(self, before: Timing) -> Timing:
        """Return the time between two readings; processes that ended in between are not counted."""
        port = None if self.port is None else max(0.0, self.port - (before.port or 0.0))
        return Timing(self.seconds - before.seconds, self.processor - before.processor, port)

    def as_dict(self) -> dict[str, float | None]:
        """Return JSON values, rounded to milliseconds."""
        port = None if self.port is None else round(self.port, 3)
        return {"seconds": round(self.seconds, 3), "processor": round(self.processor, 3), "port": port}


class Stopwatch:
    """A stopwatch for the stages of a check.

    Args:
        port: Returns the processor time of the port's processes in seconds; None if it is not known.
    """

    def __init__(self, port: Callable[[], float | None]) -> None:
        self.port = port
        self.stages: dict[str, Timing] = {}

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Measure a stage, also if an exception ends it."""
        before = self.read()
        try:
            yield
        finally:
            self.stages[stage] = self.read().since(before)

    def read(self) -> Timing:
        """Return the time since the start of each clock."""
        return Timing(time.monotonic(), time.process_time(), self.port())
