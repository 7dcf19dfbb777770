"""A port in a process of its own, which owes an answer to every call.

Exits, signals, closed streams and patched globals of the port stay in its process. It is stopped, with all processes
that it started, if it gives no answer in time and when the check ends.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import PortError, PortProcessError
from transparity_conformance.capabilities.sharding import Sharding
from transparity_conformance.capabilities.table import ATTRIBUTES, CAPABILITIES
from transparity_conformance.checkpoints.editing import Edit
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.inputs import shapes_of
from transparity_conformance.running.loading import runtime_of
from transparity_conformance.running.process.child import TIMEOUT, checked_timeout
from transparity_conformance.running.process.ranks import ProcessGroup
from transparity_conformance.running.process.running import MISSHAPEN, RemotePort
from transparity_conformance.running.process.wire import (
    Handle,
    received,
)


def isolated(spec: str, timeout: float = TIMEOUT, model_type: str | None = None) -> contextlib.closing[IsolatedBuild]:
    """Return the context of a port's `build`, as `isolated_build`, in a process that ends with the context.

    With a `model_type`, the port is a loader of hub folders of that family.
    """
    return contextlib.closing(isolated_build(spec, timeout).loading(model_type))


def isolated_build(
    spec: str, timeout: float | None = None, adapter: str | None = None, ranks: int = 1
) -> IsolatedBuild:
    """Start a process, or one for each of several ranks, for the port `spec` (`file.py:build`); return its `build`.

    With the file of an `adapter`, `spec` makes a model; with an empty one, that model keeps its own weights.

    The process loads the port while the checker goes on. The first use raises `LoadError` if there is no such port;
    calls raise `PortCallError` for what the port raises, and `PortProcessError` if its process ends, or gives no
    answer within `timeout` seconds.
    """
    return IsolatedBuild(ProcessGroup(spec, checked_timeout(timeout), adapter, ranks, is_launched=ranks > 1))


def spec_of(build: Callable[..., Any] | str) -> str:
    """The name under which another process can import a function; raises `PortError` if there is none."""
    if isinstance(build, str):
        return build
    name, module = getattr(build, "__qualname__", ""), getattr(build, "__module__", "") or ""
    file = getattr(sys.modules.get(module), "__file__", None)
    if not name.isidentifier() or file is None:
        raise PortError(
            f"isolated=True was given {name or type(build).__name__}, which another process cannot import; expected a "
            "function at the top of a file: move it there, or leave out isolated=True."
        )
    return f"{os.path.realpath(file)}:{name}"


class _Remote:
    """A function in another process, with its signature."""

    def __init__(self, call: Callable[..., Any], described: Any) -> None:
        self._call, self._described = call, described

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self._described)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._call(*args, **named)


class RemoteForward(RemotePort):
    """A built port in another process."""

    is_filled = True
    """Whether its tensors have the weights that it was given."""

    def __init__(
        self, process: ProcessGroup, handle: Handle, config: TransformerConfig | None, described: Any = None
    ) -> None:
        self._process, self.handle, self._config, self._described = process, handle, config, described

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self._described)

    def __call__(self, **tokens: np.ndarray) -> Any:
        """Run the forward pass, whose answer is at most as large as all of its taps."""
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
        """Listen in the port's process, to values of half an answer's size."""
        request = self.handle.number, method, args, named, _stays(method), whole_numbers
        answer = self._process.answer(method or "forward", "listen", *request)
        try:
            result, operations = answer[0], received(answer[1])
        except (ValueError, TypeError, LookupError, OverflowError) as error:
            self._process.stop()
            raise PortProcessError(f"The port's process described operations that are none: {error}.") from None
        _keep_track(self._process, result)
        return result, operations

    def sharding(self) -> Sharding:
        return self._process.sharding_of(self.handle)

    def replicas(self) -> Mapping[str, Sequence[np.ndarray]]:
        return self._process.replicas()


class IsolatedModel(RemoteForward):
    """A model in another process, whose tensors are read and written."""

    def tensors(self) -> dict[str, np.ndarray]:
        """The tensors by name; raises `PortProcessError` if they are none."""
        return self._arrays("tensors")

    def buffers(self) -> dict[str, np.ndarray]:
        """The buffers by name; raises `PortProcessError` if they are none."""
        return self._arrays("buffers")

    def _arrays(self, what: str) -> dict[str, np.ndarray]:
        answer = self.asked(what)
        if not (isinstance(answer, Mapping) and all(isinstance(value, np.ndarray) for value in answer.values())):
            raise PortProcessError(f"The port's process answered {what} with what are no arrays.")
        return {str(name): value for name, value in answer.items()}

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Write into tensors or buffers."""
        self.asked("assign", dict(values))

    def inputs(self) -> dict[str, str]:
        """Its own name of each of its inputs."""
        return {str(ours): str(name) for ours, name in dict(self.asked("inputs")).items()}

    def widen(self) -> bool:
        """Go on in float64, if it can."""
        return bool(self.asked("widen"))

    def narrow(self) -> None:
        """Go back to the precision that it had."""
        self.asked("narrow")


class IsolatedBuild:
    """`build` of a port in another process; with a `model_type`, the port is a loader of folders of that family."""

    def __init__(self, process: ProcessGroup, model_type: str | None = None, edit: Edit | None = None) -> None:
        self.process, self.model_type, self.edit = process, model_type, edit

    @property
    def __signature__(self) -> inspect.Signature:
        return _signature(self.process.loaded()[1])

    @property
    def has_own_weights(self) -> bool:
        """Whether it is an artefact, to which no weights are sent."""
        return runtime_of(self.process.spec) is not None

    def loading(self, model_type: str | None) -> IsolatedBuild:
        """The same port as a loader of folders of the family, or as a `build` for None."""
        return IsolatedBuild(self.process, model_type)

    def on(self, process: ProcessGroup) -> IsolatedBuild:
        """The same port in another process, or in several."""
        return IsolatedBuild(process, self.model_type, self.edit)

    def edited(self, edit: Edit) -> IsolatedBuild:
        """The same loader of folders with a change."""
        return IsolatedBuild(self.process, self.model_type, edit)

    def close(self) -> None:
        """End the process."""
        self.process.stop()

    def limits(self) -> dict[str, Any]:
        """The calls that an artefact takes, as fields of `Limits`."""
        return dict(self.process.answer("what it takes", "limits", self.process.loaded()[0]))

    def __call__(self, *args: Any, **named: Any) -> RemoteForward:
        handle, signature, offered = self._built(args, named)
        forward = RemoteForward(self.process, handle, args[0], signature)
        for name in [name for name in ATTRIBUTES if name in offered]:
            setattr(forward, name, _Remote(functools.partial(_called, self.process, handle, name), offered[name]))
        return forward

    def model(self, folder: str | None, weights: Mapping[str, np.ndarray] | None = None) -> RemoteForward:
        """The forward pass of what a loader makes of a folder, or of a module that is made, and filled if its tensors
        have the names of `weights`; it takes inputs by its own names."""
        what = "load(folder)" if folder is not None else "making the module"
        number, _ = self.process.loaded()
        made, signature, is_filled = self.process.answer(what, "model", number, folder, weights)
        forward = RemoteForward(self.process, self.process.handle(made), None, signature)
        forward.is_filled = bool(is_filled)
        return forward

    def made(self, config: TransformerConfig | None, parameters: Mapping[str, np.ndarray]) -> IsolatedModel:
        """The model that a port makes, which keeps its own weights; one that takes parameters is given these.

        Without a configuration its inputs are those that it takes.
        """
        return IsolatedModel(self.process, self._built((config, dict(parameters)), {})[0], config)

    def _built(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Handle, Any, Mapping[str, Any]]:
        """Build a port: its handle, its signature, and those of the methods that it offers."""
        process = self.process
        number, _ = process.loaded()
        family = None if self.model_type is None else (self.model_type, process.folder(), self.edit)
        what = "build(config, parameters)" if family is None else "load(folder)"
        number, signature, offered = process.answer(what, "build", number, args, named, list(ATTRIBUTES), family)
        if number is None and offered is None:
            raise PortError(str(signature))
        if number is None:
            raise PortError(f"build(config, parameters) returned {signature}; expected a function forward(**tokens).")
        return process.handle(number), signature, offered


def _called(process: ProcessGroup, handle: Handle, name: str, *args: Any, **named: Any) -> Any:
    """Call a method of a built port; a function of its own, as what refers to a port keeps it in its process."""
    value = process.answer(name, "call", handle.number, name, args, named, _stays(name))
    _keep_track(process, value)
    return value


def _keep_track(process: ProcessGroup, value: Any) -> None:
    """Let a port's process forget the objects of an answer when the checker does."""
    for item in value if isinstance(value, tuple | list) else [value]:
        if isinstance(item, Handle):
            process.forgotten_with(item)


def _stays(name: str) -> int | None:
    """The item of the result of a method that stays in the port's process."""
    return next((row.stays for row in CAPABILITIES.values() if row.attribute == name), None)


def _signature(described: Any) -> inspect.Signature:
    """The signature that the port's process described; raises `TypeError` if the function has none."""
    if described is None:
        raise TypeError("a function without a signature")
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(
                name, inspect._ParameterKind(kind), annotation=note or empty, default=default[0] if default else empty
            )
            for name, kind, note, default in described
        ]
    )
