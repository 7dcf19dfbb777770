"""Find the installed backends by their entry points, and the harnesses that call single functions of a backend."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from importlib.metadata import entry_points

from transparity.protocol import ENTRY_POINTS, HARNESS_ENTRY_POINTS, Backend, Harness

REFERENCE = "numpy"


@functools.cache
def named() -> dict[str, str]:
    """Return each backend's entry point, the reference first."""
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {name: found[name] for name in sorted(found, key=lambda name: (name != REFERENCE, name != "pytorch", name))}


@functools.cache
def absent() -> dict[str, str]:
    """Return the import errors of backends whose framework is not installed."""
    missing = {}
    for name in named():
        try:
            backend(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == named()[name].partition(".")[0]:
                raise
            missing[name] = f"its framework cannot be imported ({error})"
    return missing


def installed() -> list[str]:
    return [name for name in named() if name not in absent()]


@functools.cache
def backend(name: str) -> Backend:
    (point,) = (point for point in entry_points(group=ENTRY_POINTS) if point.name == name)
    return point.load()


@functools.cache
def harness(name: str) -> Harness | None:
    for point in entry_points(group=HARNESS_ENTRY_POINTS, name=name):
        return point.load()
    return None


def pinned(name: str) -> AbstractContextManager[None]:
    """Return a context in which a backend computes in full float32 precision."""
    parts = harness(name)
    return parts.pinned() if parts else nullcontext()
