"""Record NumPy: each expression in the port's own code whose value is an array.

NumPy has no hook for all operations, and `np.asarray` would drop a subclass of `ndarray`. A first call therefore finds
the port's functions. During a second call, these functions have rewritten code, which reports the value of each
expression (see `expressions`).

If the port calls an installed package, only the result of the call is recorded. Integers and bools are recorded only on
request. Otherwise, the inputs of an integer array become inputs of the operations that read the array. The following
are not recorded:

- compiled functions, and functions without source text
- other threads
- arrays that an expression only looks up
- assignments to several targets at once
"""

from __future__ import annotations

import builtins
import contextlib
import linecache
import sys
import threading
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType
from typing import Any

import numpy as np

from transparity_conformance.listening import expressions
from transparity_conformance.listening.operation import functions_of
from transparity_conformance.listening.record import Origins, Record, Region

REARRANGEMENTS = frozenset(
    ["array", "asarray", "ascontiguousarray", "astype", "broadcast_to", "copy", "frombuffer", "from_dlpack", "load"]
) | {"moveaxis", "ravel", "reshape", "squeeze", "swapaxes", "transpose"}
"""Functions that only copy, cast or rearrange; the record leaves them out if they read a parameter."""

UNINITIALISED = frozenset(["empty", "empty_like"])
SHAPE_ALONE = frozenset(["zeros_like", "ones_like", "full_like"])

WRITERS = frozenset(["copyto", "fill", "fill_diagonal", "itemset", "put", "put_along_axis", "putmask", "sort"])

KINDS = (FunctionType, MethodType, BuiltinMethodType, type, np.ufunc)
"""Types of functions whose `__name__` runs no code of the port."""

PLAIN = frozenset([float, int, bool, str, bytes])
"""Types without arrays, which the hooks skip to save time."""

LONGEST_LIST = 256
"""Longer lists are not searched for arrays, because they usually contain tokens."""

_active: list[_Listener] = []


@contextlib.contextmanager
def listening(record: Record, call: Callable[[], Any]) -> Iterator[None]:
    """Run `call` to find the functions to rewrite, then record this thread's operations within the context."""
    hooks = {
        expressions.VALUE: _value,
        expressions.OPERAND: _operand,
        expressions.GENERATED: _generated,
        expressions.WROTE: _wrote,
        expressions.SLICE: slice,
    }
    for name, hook in hooks.items():
        setattr(builtins, name, hook)  # never removed, because functions that a call defines may run later
    replaced: list[tuple[FunctionType, Any]] = []
    listener = _Listener(record)
    try:
        for function in functions_of(call):
            code = function.__code__
            text = "".join(linecache.getlines(code.co_filename, function.__globals__))
            changed = expressions.reporting(code.co_filename, text).get(expressions.identity(code))
            if changed is not None:
                replaced.append((function, code))
                function.__code__ = changed
        listener.codes = {function.__code__ for function, _ in replaced}
        _active.append(listener)
        yield
    finally:
        _active[:] = [each for each in _active if each is not listener]
        for function, code in replaced:
            function.__code__ = code


def _operand(number: int, value: Any) -> Any:
    if _active:
        _active[-1].operands[id(sys._getframe(1)), number] = value
    return value


def _generated(number: int, value: Any) -> Any:
    if not _active:
        return value
    items: list[Any] = []
    is_lazy = type(value) in (GeneratorType, map)  # the port may define its own `map`
    _active[-1].operands[id(sys._getframe(1)), number] = items if is_lazy else value

    def noted() -> Iterator[Any]:
        for item in value:  # an item becomes an operand when the port reads the item
            items.append(item)
            yield item

    return noted() if is_lazy else value


def _value(number: int, value: Any) -> Any:
    if type(value) not in PLAIN and _active and _active[-1].thread == threading.get_ident():
        _active[-1].operation(sys._getframe(1), expressions.SITES[number], value)
    return value


def _wrote(number: int, array: Any) -> None:
    if _active and _active[-1].thread == threading.get_ident():
        _active[-1].wrote(sys._getframe(1), expressions.SITES[number], array)


class _Listener:
    def __init__(self, record: Record) -> None:
        self.record, self.thread = record, threading.get_ident()
        self.operands: dict[tuple[int, int], Any] = {}
        self.codes: set[Any] = set()

    def operation(self, frame: Any, site: expressions.Site, value: Any) -> None:
        """Record the arrays that an expression computed, but not arrays that it only looked up."""
        operands = [self.operands.pop((id(frame), number), None) for number in site.operands]
        name, given = site.name, operands
        if site.kind in ("call", "method"):
            function, *given = operands
            name = _name(function) or site.name
            if self._is_own(function) or not _computes(function, given):
                return
            written = value if site.writes else None
            if name in WRITERS and value is None:
                written = next(_arrays(given), None)
            if isinstance(written, np.ndarray):
                self._write(name, written, self._origins(given))
                return
        elif site.kind in ("subscript", "attribute") and not isinstance(operands[0], np.ndarray):
            return
        self._add(name, _arrays(value), given)

    def wrote(self, frame: Any, site: expressions.Site, array: Any) -> None:
        """Record a modified array, or a new array under the same name."""
        before, value, *index = (self.operands.pop((id(frame), number), None) for number in site.operands)
        if not isinstance(array, np.ndarray):
            return
        if array is not before:
            self._add(site.name, [array], [before, value])
            return
        part = array[index[0]] if index else array
        is_view = isinstance(part, np.ndarray) and np.may_share_memory(part, array)
        for place in map(_region, _arrays(value)):
            self.record.settle(place, self.record.numbers)
        self._write(site.name, part if is_view else array, self._origins([before, value]))

    def _add(self, name: str, arrays: Any, given: list[Any]) -> None:
        if name in UNINITIALISED:
            return
        record, read = self.record, [_region(array) for array in _arrays(given)]
        owners = {place.owner for place in read}
        for array in arrays:
            place = _region(array)
            is_view = place.owner in owners
            if record.has(place) or (is_view and not record.knows(place)):
                continue
            if not is_view:
                for each in read:
                    record.settle(each, record.numbers)
            inputs = () if name in SHAPE_ALONE else record.origins(read)
            if inputs or name not in REARRANGEMENTS:
                record.put(place, record.add(f"numpy.{name}", record.numbers(array), inputs, record.sources.here()))

    def _write(self, name: str, array: Any, inputs: Origins) -> None:
        record, place = self.record, _region(array)
        record.write(place, record.add(f"numpy.{name}", record.numbers(array), inputs, record.sources.here()))

    def _origins(self, given: Any) -> Origins:
        return self.record.origins([_region(array) for array in _arrays(given)])

    def _is_own(self, function: Any) -> bool:
        if isinstance(function, MethodType):
            function = function.__func__
        if not isinstance(function, FunctionType):
            function = getattr(type(function), "__call__", None)  # noqa: B004 - the method itself
        return isinstance(function, FunctionType) and function.__code__ in self.codes


def _name(function: Any) -> str:
    """Return a function's name, or "" if reading `__name__` may run code of the port."""
    is_known = isinstance(function, KINDS) or type(function).__module__.startswith("numpy")
    return str(getattr(function, "__name__", "")) if is_known else ""


def _computes(function: Any, given: list[Any]) -> bool:
    """Return whether a function computes its result, and does not only look up an array."""
    if isinstance(function, BuiltinMethodType):
        owner = function.__self__
        if isinstance(owner, dict | list | tuple | str | set) or (owner is builtins and function is not sum):
            return False
    kind = type(function)
    # NumPy's ufuncs have a `__module__`; the ufuncs of SciPy and of `np.frompyfunc` have none.
    module = getattr(function, "__module__", kind.__module__) if isinstance(function, KINDS) else kind.__module__
    return str(module).startswith("numpy") or any(True for _ in _arrays(given))


def _arrays(value: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(value, np.ndarray | np.generic):
        yield value
    elif depth and isinstance(value, list | tuple) and len(value) <= LONGEST_LIST:
        for item in value:
            yield from _arrays(item, depth - 1)


def _region(array: Any) -> Region:
    if isinstance(array, np.generic):
        return Region(id(array), None, array, array)
    owner = array
    while (base := getattr(owner, "base", None)) is not None:
        owner = base
    geometry = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str)
    return Region(id(owner), geometry, array, owner)
