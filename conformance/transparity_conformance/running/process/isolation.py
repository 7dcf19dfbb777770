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
from transparity.parameters import parameter_shapes
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, PortProcessError, has_method
from transparity_conformance.capabilities.sharding import ALONE, Sharding, read_placements
from transparity_conformance.capabilities.table import ATTRIBUTES, CAPABILITIES
from transparity_conformance.checkpoints.exporting import Edit
from transparity_conformance.listening.backward import Backward
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.artefacts import runtime_of
from transparity_conformance.running.inputs import shapes_of
from transparity_conformance.running.process import requests
from transparity_conformance.running.process.child import checked_timeout
from transparity_conformance.running.process.joining import Shapes, handle_of, joined
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
    started = functools.partial(ProcessGroup, spec, checked_timeout(timeout), adapter, is_small=is_small)
    group = started(ranks, is_launched=ranks > 1)
    group.alone = started(is_launched=True) if ranks > 1 else None
    return IsolatedBuild(group)


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
    """A built port in another process; calling it runs the forward pass. `offered` contains the descriptions of the
    signatures of its methods."""

    is_filled = True
    """Whether the port's tensors contain the weights that the caller passed."""

    def __init__(
        self,
        process: ProcessGroup,
        handle: Handle,
        config: TransformerConfig | None,
        described: Any = None,
        sharding: Sharding = ALONE,
        offered: Mapping[str, Any] | None = None,
    ) -> None:
        self._process, self.handle, self._config, self._described = process, handle, config, described
        self._sharding, self._offered = sharding, offered or {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._offered:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return _Method(functools.partial(self.asked, name), self._offered[name])

    def __call__(self, **tokens: np.ndarray) -> Any:
        """Run the forward pass; accept an answer with as many bytes as all activations have together."""
        largest = None
        if self._config is not None:
            largest = 8 * sum(map(math.prod, shapes_of(self._config, tokens).values())) + MISSHAPEN
        request = requests.call, self.handle, "", (), tokens, None, self._config
        return self.joined("", self._process.answers("forward", *request, largest=largest), tokens)

    def offers(self, name: str) -> bool:
        return all(self._process.answers("the request for its methods", has_method, self.handle, name))

    def asked(self, method: str, *args: Any, **named: Any) -> Any:
        return self.joined(method, self.answers_by_rank(method, *args, **named))

    def answers_by_rank(self, method: str, *args: Any, **named: Any) -> list[Any]:
        kind = Backward if method == "backward" else object
        return self._process.answers(method, requests.call, self.handle, method, args, named, _stays(method), kind=kind)

    def listened(
        self, method: str = "", /, *args: Any, whole_numbers: bool = False, **named: Any
    ) -> tuple[Any, list[Operation]]:
        """Call a method, or by default the forward pass, and record its operations. Leave out operations whose values
        would make the record larger than half of `largest_answer()`."""
        config = None if method else self._config
        request = requests.listen, self.handle, method, args, named, _stays(method), config, whole_numbers
        answers = self._process.answers(method or "forward", *request, kind=Recorded)
        result = self.joined(method, [each.result for each in answers], named)
        return Recorded(result, self._process.whole.of(self.handle, [each.operations for each in answers]))

    def joined(self, method: str, answers: Sequence[Any], tokens: Mapping[str, np.ndarray] | None = None) -> Any:
        if not self._process.is_launched:
            return answers[0]
        shapes: Shapes = {}
        if self._config is not None and method:
            shapes = parameter_shapes(self._config)
        elif self._config is not None and tokens:
            shapes = shapes_of(self._config, tokens)
        return joined(method or "forward", answers, self._sharding, shapes, self._process.differing)

    def sharding(self) -> Sharding:
        return self._sharding

    def replicas(self) -> Mapping[str, Sequence[np.ndarray]]:
        """Return the values of the last call that should be equal on all ranks but differ, as lists with one array per
        rank."""
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
        given = self.model_type, self.process.folder(), folder, list(names)
        return list(self._answers("load(folder)", requests.reported, *given)[0])

    def close(self) -> None:
        self.process.stop()

    def limits(self) -> dict[str, Any]:
        return dict(self._answers("the request for its limits", requests.limits)[0])

    def __call__(self, *args: Any, **named: Any) -> RemotePort:
        handle, signature, offered = self._built(args, named)
        sharding = self._sharding(handle) if self.process.is_launched else ALONE
        return RemotePort(self.process, handle, args[0], signature, sharding, offered)

    def model(self, folder: str | None, weights: Mapping[str, np.ndarray] | None = None) -> RemotePort:
        """Load a folder, or build a module; return a forward pass that takes inputs by the model's own names. If the
        module's tensors have the names and shapes of `weights`, fill the module with `weights`."""
        what = "load(folder)" if folder is not None else "building the module"
        try:
            ((handle, signature, is_filled),) = self._answers(what, requests.model, folder, weights)
        except PortCallError as error:
            raise PortError(f"{self.process.spec if folder is None else what} raised {error}.") from error.__cause__
        forward = RemotePort(self.process, handle, None, signature)
        forward.is_filled = bool(is_filled)
        return forward

    def made(self, config: TransformerConfig | None, parameters: Mapping[str, np.ndarray]) -> IsolatedModel:
        """Build a port's model with its own weights. Without a configuration, inputs have the model's own names."""
        return IsolatedModel(self.process, self._built((config, dict(parameters)), {})[0], config)

    def _answers(self, what: str, request: Callable[..., Any], *given: Any) -> list[Any]:
        return self.process.answers(what, request, self.process.loaded()[0], *given)

    def _built(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Handle, Any, Mapping[str, Any]]:
        family = None if self.model_type is None else (self.model_type, self.process.folder(), self.edit)
        what = "build(config, parameters)" if family is None else "load(folder)"
        answers = self._answers(what, requests.build, args, named, list(ATTRIBUTES), family)
        for made, signature, offered in answers:
            if made is None and offered is None:
                raise PortError(str(signature))
            if made is None:
                raise PortError(f"{what} returned {signature}; expected a function forward(**tokens).")
        return handle_of([made for made, _, _ in answers]), *answers[0][1:]

    def _sharding(self, handle: Handle) -> Sharding:
        declared = self.process.answers("the request for its placements", requests.placements, handle)
        for rank, each in enumerate(declared):
            if each != declared[0]:
                raise PortError(f"Ranks 0 and {rank} declare different placements; expected the same on every rank.")
        return Sharding(self.process.ranks, read_placements(declared[0], self.process.ranks))


def _stays(name: str) -> int | None:
    """Return the index of the item, such as a cache, that stays in the port's process when the method `name` returns.
    If the process sends all items, return None."""
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
