"""The backends that are installed, found by entry point: a third party's is as good as ours."""

from __future__ import annotations

import functools
from importlib.metadata import entry_points

from transparity.protocol import ENTRY_POINTS, Backend

REFERENCE = "numpy"


@functools.cache
def named() -> dict[str, str]:
    """The name of every backend that an entry point names, the reference first, with the object that it names."""
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINTS)}
    return {name: found[name] for name in sorted(found, key=lambda name: (name != REFERENCE, name != "pytorch", name))}


@functools.cache
def absent() -> dict[str, str]:
    """The backends whose framework is not installed, with what is missing. What is broken in another way is raised."""
    missing = {}
    for name in named():
        try:
            backend(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] == named()[name].partition(".")[0]:
                raise
            missing[name] = f"it cannot be imported ({error})"
    return missing


def installed() -> list[str]:
    """The names of the backends that can be imported, the reference first."""
    return [name for name in named() if name not in absent()]


@functools.cache
def backend(name: str) -> Backend:
    """The backend called `name`; its framework is imported now. Raises `ImportError` if that is not installed."""
    (point,) = (point for point in entry_points(group=ENTRY_POINTS) if point.name == name)
    loaded: Backend = point.load()
    return loaded
