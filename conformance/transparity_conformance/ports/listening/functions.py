"""The port's functions that a call can reach."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numpy as np

from transparity_conformance.ports.listening.source import home

MOST = 200_000
"""Objects that are looked at, the nearest to the call first."""

LEAVES = (str, bytes, int, float, complex, bool, type(None), np.ndarray, np.generic, CodeType)


def functions_of(call: Callable[[], Any]) -> Iterator[FunctionType]:
    """Yield the functions with source of the port that can be reached from a call, each once."""
    seen: dict[int, Any] = {}
    todo: deque[Any] = deque([call])
    while todo and len(seen) < MOST:
        item = todo.popleft()
        if id(item) in seen or isinstance(item, LEAVES):
            continue
        seen[id(item)] = item
        if isinstance(item, FunctionType):
            is_own = home(item.__code__.co_filename) == ""
            if is_own:
                yield item
            # others may wrap one of the port's; their globals are not the port's
            todo.extend([item.__closure__, item.__defaults__, item.__dict__, *([item.__globals__] if is_own else [])])
        elif isinstance(item, type | ModuleType):
            if _is_own(item):
                todo.extend(vars(item).values())
                todo.extend(item.__mro__ if isinstance(item, type) else ())
        else:
            todo.extend(gc.get_referents(item))


def _is_own(item: type | ModuleType) -> bool:
    """Return whether a class or a module is the port's; attributes are read where no code of a stranger runs."""
    members = vars(item)
    if isinstance(item, ModuleType):
        return _is_own_file(members.get("__file__"))
    functions = [each for each in members.values() if isinstance(each, FunctionType)]
    if any(home(function.__code__.co_filename) == "" for function in functions):
        return True
    module = sys.modules.get(str(members.get("__module__")))
    return module is not None and _is_own_file(vars(module).get("__file__"))


def _is_own_file(file: Any) -> bool:
    return isinstance(file, str) and home(file) == ""
