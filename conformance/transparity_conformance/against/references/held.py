"""Find the arrays that a function or an object refers to, with names such as `model.layers.0.weight`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from transparity_conformance.running.inputs import is_instance

Change = Callable[[str, Any], Any]


class Walk:
    """Visits all arrays in an object and replaces each by `change(name, array)`; `undo` restores the arrays."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self._seen: dict[int, tuple[Any, Any]] = {}
        self._undo: list[Callable[[], Any]] = []

    def undo(self) -> None:
        for each in reversed(self._undo):
            each()
        self._undo.clear()

    def __call__(self, node: Any, path: str = "") -> Any:
        """Visit an object. Return a copy of each container whose arrays are replaced."""
        if isinstance(node, str | bytes | int | float | bool | type | ModuleType | None):
            return node
        if id(node) not in self._seen:
            self._seen[id(node)] = node, node  # stops the recursion if the object contains itself
            self._seen[id(node)] = node, self._walked(node, path)
        return self._seen[id(node)][1]

    def _walked(self, node: Any, path: str) -> Any:
        if isinstance(node, np.ndarray) or is_instance(node, "torch", "Tensor") or is_instance(node, "jax", "Array"):
            return self.change(path, node)
        if is_instance(node, "torch.nn", "Module"):
            for name, value in (*node.named_parameters(), *node.named_buffers()):
                self(value, _join(path, name))
            return node
        if is_instance(node, "flax.nnx", "Variable"):
            self(node[...], path)
            return node
        if type(node) in (dict, list, tuple):
            return self._container(node, path)
        if isinstance(node, functools.partial):
            inside = [self(each, path) for each in (node.func, node.args, node.keywords)]
            return functools.partial(inside[0], *inside[1], **inside[2])
        if isinstance(node, MethodType):
            self(node.__self__, path)
        elif isinstance(node, FunctionType):
            self._function(node, path)
        elif hasattr(node, "__dict__") and (type(node).__module__ or "").partition(".")[0] not in ("numpy", "jaxlib"):
            for name, value in list(vars(node).items()):
                self._replace(value, _join(path, name), functools.partial(object.__setattr__, node, name))
            self(getattr(type(node), "__call__", None), path)  # noqa: B004 - the function itself
        return node

    def _container(self, node: Any, path: str) -> Any:
        pairs = list(node.items() if isinstance(node, dict) else enumerate(node))
        now = [self(item, _join(path, str(key))) for key, item in pairs]
        if all(new is old for new, (_, old) in zip(now, pairs, strict=True)):
            return node
        return {key: new for new, (key, _) in zip(now, pairs, strict=True)} if type(node) is dict else type(node)(now)

    def _function(self, node: FunctionType, path: str) -> None:
        if (inside := getattr(node, "__wrapped__", None)) is not None:
            self(inside, path)
        for name, cell in zip(node.__code__.co_freevars, node.__closure__ or (), strict=True):
            self._replace(cell.cell_contents, _join(path, name), functools.partial(setattr, cell, "cell_contents"))
        for name in node.__code__.co_names:
            value = node.__globals__.get(name)
            is_near = not isinstance(value, FunctionType) or value.__globals__ is node.__globals__
            if is_near:
                self._replace(value, _join(path, name), functools.partial(node.__globals__.__setitem__, name))

    def _replace(self, value: Any, path: str, put: Callable[[Any], Any]) -> None:
        new = self(value, path)
        if new is not value:
            put(new)
            self._undo.append(functools.partial(put, value))


def arrays_of(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield (first name, array) for each array in an object."""
    found: list[tuple[str, Any]] = []

    def keep(path: str, array: Any) -> Any:
        found.append((path, array))
        return array

    Walk(keep)(node)
    yield from found


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
