"""What a function holds: the module that it is a method of, closes over or names."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from transparity_conformance.running.loader.inputs import is_instance


def module_in(function: Any) -> Any:
    """The module of PyTorch that a function is or holds; None if there is none."""
    return next((node for node in held(function) if is_instance(node, "torch.nn", "Module")), None)


def held(function: Any) -> Iterator[Any]:
    """Yield a function and what it holds, the nearest first."""
    waiting, seen = [function], set()
    while waiting:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        cells = getattr(node, "__closure__", None) or ()
        closed = dict(zip(getattr(getattr(node, "__code__", None), "co_freevars", ()), cells, strict=False))
        parts = {name: cell.cell_contents for name, cell in closed.items()}
        parts |= getattr(node, "__dict__", {}) if not isinstance(node, type) else {}
        waiting += [getattr(node, name) for name in ("__self__", "func") if hasattr(node, name)]
        yield {name: part for name, part in parts.items() if isinstance(part, dict | list)}
        waiting += [*parts.values(), *_named_by(node)]


def _named_by(function: Any) -> Iterator[Any]:
    """Yield the modules of PyTorch and the functions of the same file that a function names."""
    if not isinstance(function, FunctionType):
        return
    for name in function.__code__.co_names:
        found = function.__globals__.get(name)
        is_near = isinstance(found, FunctionType) and found.__globals__ is function.__globals__
        if is_near or is_instance(found, "torch.nn", "Module"):
            yield found
