"""Run a port in its own process, so that the port cannot stop or disturb the checker.

If the port exits, crashes, closes streams or patches globals, only its own process is affected. The checker stops the
process and its descendants if an answer is late, and at the end of the check.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, PortProcessError
from transparity_conformance.capabilities.sharding import Sharding
from transparity_conformance.capabilities.table import ATTRIBUTES, CAPABILITIES
from transparity_conformance.checkpoints.exporting import Edit
from transparity_conformance.listening.backward import Backward
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.artefacts import runtime_of
from transparity_conformance.running.inputs import shapes_of
from transparity_conformance.running.process.child import checked_timeout
from transparity_conformance.running.process.ranks import ProcessGroup
from transparity_conformance.running.process.wire import MISSHAPEN, Handle, Recorded


def isolated_build(
    spec: str, timeout: float | None = None, adapter: str | None = None, ranks: int = 1, *, is_small: bool = False
) -> IsolatedBuild:
    """Start a process for the port `spec` (`file.py:build`), or one process per rank; return the port's `build`.

    If `adapter` is the path of an adapter, the port builds a model, and the adapter's lines fill the model's tensors.
    If `adapter` is empty, the model keeps its own weights. The process loads the port in the background; if the port
    does not exist, the first use raises `LoadError`. A call raises `PortCallError` if the port raises an exception, and
    `PortProcessError` if the process ends or gives no answer within `timeout` seconds. Set `is_small` if all models are
    small: the process then uses one thread, and JAX compiles without slow passes.
    """
    seconds, is_launched = checked_timeout(timeout), ranks > 1
    return IsolatedBuild(ProcessGroup(spec, seconds, adapter, ranks, is_launched=is_launched, is_small=is_small))


def spec_of(build: Callable[..., Any] | str) -> str:
    """Return a name under which another process can import a function; raise `PortError` if that is impossible."""
    if isinstance(build, str):
        return build
    name, module = getattr(build, "__qualname__", ""), getattr(build, "__module__", "") or ""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not name.isidentifier() or file is None:
        raise PortError(
            f"isolated=True was given {name or type(build).__name__}, which another process cannot import; expected a "
            "function at the top level of a file: move it there, or omit isolated=True."
        )
    return f"{os.path.realpath(file)}:{name}"


class _Described:
    """An object in another process; `_described` is the description of its signature."""

    _described: Any

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self._described)


class _Method(_Described):
    def __init__(self, call: Callable[..., Any], described: Any) -> None:
        self._call, self._described = call, described

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **named)


class RemotePort(_Described):
    """A built port in another process; calling it runs the forward pass."""

    is_filled = True
    """Whether the port's tensors contain the weights that the caller passed."""

    def __init__(
        self, process: ProcessGroup, handle: Handle, config: TransformerConfig | None, described: Any = None
    ) -> None:
        self._process, self.handle, self._config, self._described = process, handle, config, described

    def __call__(self, **tokens: np.ndarray) -> Any:
        """Run the forward pass; the answer may have as many bytes as all activations together."""
        config, largest = self._config, None
        if config is not None:
            largest = 8 * sum(map(math.prod, shapes_of(config, tokens).values())) + MISSHAPEN
        return self._process.answer("forward", "call", self.handle.number, "", (), tokens, None, largest=largest)

    def offers(self, name: str) -> bool:
        return self._process.offers(self, name)

    def asked(self, name: str, *args: Any, **named: Any) -> Any:
        return _called(self._process, self.handle, name, *args, **named)

    def listened(
        self, method: str = "", /, *args: Any, whole_numbers: bool = False, **named: Any
    ) -> tuple[Any, list[Operation]]:
        """Call a method, or by default the forward pass, and record its operations. Leave out operations whose values
        would make the record larger than half of `largest_answer()`."""
        request = self.handle.number, method, args, named, _stays(method), whole_numbers
        recorded: Recorded = self._process.answer(method or "forward", "listen", *request, kind=Recorded)
        _keep_track(self._process, recorded.result)
        return recorded

    def sharding(self) -> Sharding:
        return self._process.sharding_of(self.handle)

    def replicas(self) -> Mapping[str, Sequence[np.ndarray]]:
        """Return the values of the last call that differ between ranks but should be equal: one array per rank."""
        return self._process.differing.last


class IsolatedModel(RemotePort):
    """A model in another process, with the methods of `adapters.model.Model`."""

    def tensors(self) -> dict[str, np.ndarray]:
        return self._arrays("tensors")

    def buffers(self) -> dict[str, np.ndarray]:
        return self._arrays("buffers")

    def _arrays(self, what: str) -> dict[str, np.ndarray]:
        answer = self.asked(what)
        if not (isinstance(answer, Mapping) and all(isinstance(value, np.ndarray) for value in answer.values())):
            raise PortProcessError(f"The port's process returned {what} that are not arrays; expected only arrays.")
        return {str(name): value for name, value in answer.items()}

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        self.asked("assign", dict(values))

    def inputs(self) -> dict[str, str]:
        return {str(ours): str(name) for ours, name in dict(self.asked("inputs")).items()}

    def widen(self) -> bool:
        return bool(self.asked("widen"))

    def narrow(self) -> None:
        self.asked("narrow")


@dataclass(frozen=True, eq=False)
class IsolatedBuild(_Described):
    """The `build` of a port in another process. With a `model_type`, the port is a loader of this family's folders."""

    process: ProcessGroup
    model_type: str | None = None
    edit: Edit | None = None

    @property
    def _described(self) -> Any:
        return self.process.loaded()[1]

    @property
    def has_own_weights(self) -> bool:
        return runtime_of(self.process.spec) is not None

    def edited(self, edit: Edit) -> IsolatedBuild:
        return dataclasses.replace(self, edit=edit)

    def reported(self, folder: str, names: Sequence[str]) -> list[str]:
        given = self.process.loaded()[0], self.model_type, self.process.folder(), folder, list(names)
        return list(self.process.answer("load(folder)", "reported", *given))

    def close(self) -> None:
        self.process.stop()

    def limits(self) -> dict[str, Any]:
        return dict(self.process.answer("the request for its limits", "limits", self.process.loaded()[0]))

    def __call__(self, *args: Any, **named: Any) -> RemotePort:
        handle, signature, offered = self._built(args, named)
        forward = RemotePort(self.process, handle, args[0], signature)
        for name in [name for name in ATTRIBUTES if name in offered]:
            setattr(forward, name, _Method(functools.partial(_called, self.process, handle, name), offered[name]))
        return forward

    def model(self, folder: str | None, weights: Mapping[str, np.ndarray] | None = None) -> RemotePort:
        """Load a folder, or build a module; return a forward pass that takes inputs by the model's own names. If the
        module's tensors have the names and shapes of `weights`, fill the module with `weights`."""
        what = "load(folder)" if folder is not None else "building the module"
        number, _ = self.process.loaded()
        try:
            made, signature, is_filled = self.process.answer(what, "model", number, folder, weights)
        except PortCallError as error:
            raise PortError(f"{self.process.spec if folder is None else what} raised {error}.") from error.__cause__
        forward = RemotePort(self.process, self.process.handle(made), None, signature)
        forward.is_filled = bool(is_filled)
        return forward

    def made(self, config: TransformerConfig | None, parameters: Mapping[str, np.ndarray]) -> IsolatedModel:
        """Build a port's model with its own weights. Without a configuration, inputs have the model's own names."""
        return IsolatedModel(self.process, self._built((config, dict(parameters)), {})[0], config)

    def _built(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Handle, Any, Mapping[str, Any]]:
        process = self.process
        number, _ = process.loaded()
        family = None if self.model_type is None else (self.model_type, process.folder(), self.edit)
        what = "build(config, parameters)" if family is None else "load(folder)"
        number, signature, offered = process.answer(what, "build", number, args, named, list(ATTRIBUTES), family)
        if number is None and offered is None:
            raise PortError(str(signature))
        if number is None:
            raise PortError(f"{what} returned {signature}; expected a function forward(**tokens).")
        return process.handle(number), signature, offered


def _called(process: ProcessGroup, handle: Handle, name: str, *args: Any, **named: Any) -> Any:
    """Call a method of a built port. This function is not a method of `RemotePort`, because Python frees an object late
    if the object refers to itself."""
    kind = Backward if name == "backward" else object
    value = process.answer(name, "call", handle.number, name, args, named, _stays(name), kind=kind)
    _keep_track(process, value)
    return value


def _keep_track(process: ProcessGroup, value: Any) -> None:
    for item in value if isinstance(value, tuple | list) else [value]:
        if isinstance(item, Handle):
            process.forgotten_with(item)


def _stays(name: str) -> int | None:
    """Return the index of the item that the port's process keeps from the result of the method `name`, such as a cache.
    If the process keeps no item, return None."""
    return next((row.stays for row in CAPABILITIES.values() if row.attribute == name), None)


def _signature(described: Any) -> inspect.Signature:
    if described is None:
        raise TypeError("the port's function has no signature")
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect._ParameterKind(kind), annotation=note or empty, default=default[0] if default else empty
            )
            for name, kind, note, default in described
        ]
    )
