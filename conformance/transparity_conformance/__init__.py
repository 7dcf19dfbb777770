"""What the columns and everybody's ports are held to: claims, evidence, budgets, the agreement matrix and the check."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transparity_conformance.check import check
    from transparity_conformance.testing import assert_conforms

__all__ = ["assert_conforms", "check"]

_HOMES = {"assert_conforms": "testing", "check": "check"}


def __getattr__(name: str) -> Any:
    """Import what is asked for and nothing else: the pytest plugin loads this package in every session."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


class _Package(ModuleType):
    """A package whose function `check` is not hidden once somebody has imported the module of that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        hides = isinstance(value, ModuleType) and name in _HOMES
        super().__setattr__(name, getattr(value, name) if hides else value)


sys.modules[__name__].__class__ = _Package
