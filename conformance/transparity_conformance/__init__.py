"""Check a port of a transformer: `check` returns a report, and `assert_conforms` raises unless the port is right."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transparity_conformance.checking.check import assert_conforms, check

__all__ = ["check", "assert_conforms"]  # noqa: RUF022 - the more common function is first

STARTED = time.monotonic()
"""The start time of the command, which imports this package first."""

_HOMES = dict.fromkeys(__all__, "checking.check")


def __getattr__(name: str) -> Any:
    """Import `check` and `assert_conforms` on first use, because pytest loads this package in every test session."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
