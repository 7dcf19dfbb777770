"""The port's functions that a call runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

from transparity_conformance.listening.source import home


def functions_of(call: Callable[[], Any]) -> list[FunctionType]:
    """Call a function, and return the port's functions with source that ran in this thread meanwhile."""
    codes = _codes_of(call)
    return [each for each in _referrers(codes.values()) if type(each) is FunctionType and id(each.__code__) in codes]


def _referrers(values: Iterable[Any]) -> list[Any]:
    """The objects that refer to any of the values, with those that the garbage collector was told to leave alone."""
    if not gc.get_freeze_count():
        return gc.get_referrers(*values)
    gc.unfreeze()
    try:
        return gc.get_referrers(*values)
    finally:
        gc.freeze()


def _codes_of(call: Callable[[], Any]) -> dict[int, CodeType]:
    """The port's code that a call runs, by identity: two functions with one text are equal."""
    codes: dict[int, CodeType] = {}

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and home(frame.f_code.co_filename) == "":
            codes[id(frame.f_code)] = frame.f_code

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return codes
