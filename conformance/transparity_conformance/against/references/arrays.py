"""Record a call of a NumPy function as PyTorch operations: in the reference's files, `np` is `torch._numpy`."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from transparity_conformance.against.references.held import Walk
from transparity_conformance.listening.operation import functions_of
from transparity_conformance.listening.program import Program, Recorder

COMMUTATIVE = ("aten.add.Tensor", "aten.mul.Tensor")
CONSTANTS = (*COMMUTATIVE, "aten.sub.Tensor", "aten.div.Tensor")
"""Operations whose second operand may be a number."""

emulated: Any = importlib.import_module("torch._numpy")


def record(call: Callable[..., Any], inputs: Mapping[str, np.ndarray], answer_of: Callable[[Any], Any]) -> Program:
    """Record a call in float64. `answer_of` selects the array to compare."""
    names: dict[int, str] = {}

    def wrapped(name: str, array: np.ndarray) -> Any:
        if array.dtype.kind not in "fiub":
            return array
        tensor = torch.from_numpy(np.array(array, np.float64 if array.dtype.kind == "f" else None))
        names[id(tensor)] = name
        return emulated.ndarray(tensor)

    recorder = _Recorder(names)
    functions = functions_of(lambda: call(**inputs))
    walk = Walk(wrapped)
    try:
        with _in_place_of_numpy([each.__globals__ for each in functions], recorder):
            whole = walk(call)
            for function in functions:  # also visit arrays in global variables
                walk(function)
            learned = set(names.values())
            given = {name: wrapped(name, np.asarray(value)) for name, value in inputs.items()}
            return recorder.recorded(lambda: emulated.asarray(answer_of(whole(**given))).tensor, learned)
    finally:
        walk.undo()


class _Recorder(Recorder):
    """Turns constant tensors without axes back into Python numbers, as in the source."""

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if str(func) == "aten.lift_fresh.default":
            return args[0]
        if str(func) in CONSTANTS and len(args) == 2:
            first, second = args
            if self._is_number(first) and not self._is_number(second) and str(func) in COMMUTATIVE:
                first, second = second, first
            args = (first, second.item()) if self._is_number(second) and not self._is_number(first) else args
        return super().run(func, args, kwargs)

    def _is_number(self, item: Any) -> bool:
        is_new = isinstance(item, torch.Tensor) and id(item) not in self.indices and id(item) not in self.names
        return is_new and item.ndim == 0


@contextlib.contextmanager
def _in_place_of_numpy(namespaces: Collection[dict[str, Any]], recorder: Recorder) -> Iterator[None]:
    whole, undo = _Namespace(np, emulated, recorder), contextlib.ExitStack()
    for names in {id(each): each for each in namespaces}.values():
        for name, value in list(names.items()):
            if (other := _other(value, whole)) is not value:
                names[name] = other
                undo.callback(names.__setitem__, name, value)
    hooks: dict[str, Callable[..., Any]] = {
        "__array_ufunc__": lambda _, ufunc, method, *given, **named: _hooked(whole, ufunc, method, given, named),
        "__array_function__": lambda _, function, kinds, given, named: _hooked(
            whole, function, "__call__", given, named
        ),
    }
    for name, hook in hooks.items():
        setattr(emulated.ndarray, name, hook)
        undo.callback(delattr, emulated.ndarray, name)
    with undo:
        yield


def _other(value: Any, whole: _Namespace) -> Any:
    if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "numpy":
        return functools.reduce(getattr, value.__name__.split(".")[1:], whole)
    is_function = isinstance(value, np.ufunc) or (callable(value) and getattr(value, "__module__", None) == "numpy")
    return getattr(whole, value.__name__, value) if is_function else value


def _hooked(whole: _Namespace, function: Any, method: str, given: Any, named: Any) -> Any:
    if method != "__call__":
        return NotImplemented
    special = getattr(torch.special, function.__name__, None)
    if isinstance(function, np.ufunc) and not hasattr(np, function.__name__) and special is not None:
        return emulated.ndarray(special(*(emulated.asarray(each).tensor for each in given)))
    return whole.of(function, function.__name__)(*given, **named)


class _Namespace(ModuleType):
    def __init__(self, real: Any, other: Any, recorder: Recorder) -> None:
        super().__init__(real.__name__)
        self._real, self._other, self._recorder = real, other, recorder

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if isinstance(real, ModuleType):
            return _Namespace(real, getattr(self._other, name, None), self._recorder)
        return self.of(real, name)

    def of(self, real: Any, name: str) -> Any:
        other = getattr(self._other, name, None)
        if other is not None or not callable(real) or isinstance(real, type):
            return real if other is None else other
        return functools.partial(_foreign, self._recorder, real)


def _foreign(recorder: Recorder, function: Any, *given: Any, **named: Any) -> Any:
    """Call a NumPy function that `torch._numpy` lacks, as one recorded operation."""
    tensors = [each.tensor if isinstance(each, emulated.ndarray) else each for each in given]
    if not any(isinstance(each, torch.Tensor) for each in tensors):
        return function(*given, **named)
    with _disable_current_modes():  # record the call as one operation
        made = recorder.run(_Foreign(function), tensors, named)
    return emulated.ndarray(made)


class _Foreign:
    _schema = SimpleNamespace(arguments=(), returns=())

    def __init__(self, function: Any) -> None:
        self.function = function

    def __str__(self) -> str:
        return f"numpy.{self.function.__name__}.default"

    def __call__(self, *given: Any, **named: Any) -> Any:
        floats = [each.dtype for each in given if isinstance(each, torch.Tensor) and each.is_floating_point()]
        made = self.function(*(_plain(each) for each in given), **named)
        tensor = torch.from_numpy(np.array(made))
        return tensor.to(floats[0]) if floats and tensor.is_floating_point() else tensor


def _plain(item: Any) -> Any:
    if not isinstance(item, torch.Tensor):
        return item
    return (item.float() if item.dtype in (torch.bfloat16, torch.float16) else item).numpy()
