"""The program in the process of a port, `python -m transparity_conformance.running.process.worker DESCRIPTOR`."""

import dataclasses
import functools
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.text import safe, shown
from transparity_conformance.capabilities import port_calls
from transparity_conformance.listening.listen import listen_once
from transparity_conformance.listening.operation import Operation
from transparity_conformance.running.adapters.adapter import read_adapter
from transparity_conformance.running.adapters.model import adapted, made_by
from transparity_conformance.running.artefacts import runtime_of
from transparity_conformance.running.forward import add_tensors, called_by_its_names, filled_by_name
from transparity_conformance.running.frameworks.modules import bound, of_build
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.inputs import taps_in
from transparity_conformance.running.loading import Listened, LoadError, load_artefact, load_port
from transparity_conformance.running.process import wire
from transparity_conformance.storage.mapped import Mapped


class Worker:
    """The objects of a port by number, and a method for each request that the checker may send."""

    def __init__(self) -> None:
        self.objects: dict[int, Any] = {}
        self.configs: dict[int, Any] = {}
        self.number = 0

    def keep(self, value: Any) -> int:
        self.number += 1
        self.objects[self.number] = value
        return self.number

    def load(self, spec: str, adapter: str | None, variables: Mapping[str, str]) -> Any:
        """Load and keep the function or the exported model that `spec` names; return its number and signature.

        If `adapter` is the path of an adapter, the function builds a model, and the adapter's lines fill its tensors.
        If `adapter` is empty, the model keeps its own weights. `variables` are environment variables to set, unless the
        port's file has already set them.
        """
        runtime = runtime_of(spec)
        build = load_port(spec) if runtime is None else load_artefact(spec, runtime)
        for variable, value in variables.items():
            os.environ.setdefault(variable, value)
        if adapter is not None:
            build = adapted(build, read_adapter(adapter)) if adapter else functools.partial(made_by, build)
        return self.keep(build), described_signature(build)

    def limits(self, number: int) -> dict[str, Any]:
        return dataclasses.asdict(self.objects[number].limits)

    def call(self, number: int, attribute: str, args: Any, named: Any, stays: int | None = None) -> Any:
        """Call an object, or its method `attribute`. If the result is a sequence, the item at the index `stays`, such
        as a cache, is not sent but stays in this process."""
        function = self.objects[number]
        args, named = self._given(args), self._given(named)
        with port_calls.tokens_kept(args, named):
            result = (getattr(function, attribute) if attribute else function)(*args, **named)
        config = self.configs.get(number)
        if not attribute and config is not None:  # the result may contain more than the activations
            return taps_in(result, config)
        if stays is None or not isinstance(result, tuple | list):
            return result
        return [wire.Kept(item) if index == stays else item for index, item in enumerate(result)]

    def placements(self, number: int) -> Any:
        declared = getattr(self.objects[number], "placements", {})
        return dict(declared) if isinstance(declared, Mapping) else shown(declared)

    def offers(self, number: int, name: str) -> bool:
        return port_calls.has_method(self.objects[number], name)

    def listen(
        self, number: int, attribute: str, args: Any, named: Any, stays: int | None, whole_numbers: bool
    ) -> wire.Recorded:
        """Call an object or its method, as `call` does; return the result and the recorded operations.

        With `whole_numbers`, record operations on integers and bools, too. An exported model records its own
        operations; with `whole_numbers`, the record of an exported model is empty.
        """
        function, operations, largest = self.objects[number], list[Operation](), wire.largest_answer() // 2
        if not isinstance(function, Listened):
            call = functools.partial(self.call, number, attribute, stays=stays)
            given = {"args": self._given(args), "named": self._given(named)}
            result, operations = listen_once(call, (), given, largest=largest, whole_numbers=whole_numbers)
        elif whole_numbers:
            result = self.call(number, attribute, args, named, stays)
        else:
            result, operations = function.listened(largest, **named)
            result = taps_in(result, self.configs[number])
        return wire.Recorded(result, operations)

    def build(
        self, number: int, args: Any, named: Any, attributes: list[str], family: tuple[Any, ...] | None = None
    ) -> Any:
        """Build and keep a port; return its number, its signature, and the signatures of its methods.

        With a `family`, the object `number` is a loader of Hugging Face folders. `family` contains the model type, a
        folder for temporary files, and the `Edit` of each folder.

        If the built object is not callable, return (None, its description, {}). If building fails, return (None, the
        message, None).
        """
        build = self.objects[number] if family is None else HubBuild(self.objects[number], *family)
        if family is None:
            args = [args[0], *map(_in_memory, args[1:])]
        try:
            with port_calls.tokens_kept(args, named):
                forward = of_build(build(*self._given(args), **self._given(named)), args[0])
        except port_calls.PortError as error:
            return None, safe(error), None
        if not callable(forward):
            return None, shown(forward), {}
        offered = {
            name: _described_method(forward, name) for name in attributes if port_calls.has_method(forward, name)
        }
        kept = self.keep(forward)
        self.configs[kept] = args[0]
        return kept, described_signature(forward), offered

    def reported(self, number: int, model_type: str, root: str, folder: str, names: list[str]) -> list[str]:
        return HubBuild(self.objects[number], model_type, root).reported(folder, names)

    def model(self, number: int, folder: str | None, weights: Mapping[str, np.ndarray] | None) -> Any:
        """Load a folder, or build a module. If the module's tensors have the names and shapes of `weights`, fill the
        module with `weights`.

        Return the number and the signature of the forward pass, and whether the module contains the weights. The
        forward pass takes inputs by the model's own names.
        """
        made = bound(self.objects[number](*([] if folder is None else [folder])))
        is_filled = weights is None or filled_by_name(made, weights)
        forward = called_by_its_names(made)
        if not is_filled:
            add_tensors(forward, made)
        return self.keep(forward), described_signature(forward), is_filled

    def release(self, numbers: list[int]) -> None:
        for number in numbers:
            self.objects.pop(number, None)
            self.configs.pop(number, None)

    def _given(self, value: Any) -> Any:
        return wire.with_handles(value, lambda handle: self.objects[handle.number])


def _in_memory(parameters: Any) -> Any:
    if not isinstance(parameters, dict):
        return parameters
    return {name: np.asarray(value) if isinstance(value, Mapped) else value for name, value in parameters.items()}


def described_signature(function: Callable[..., Any]) -> Any:
    """Return a list (name, kind, annotation, default) for each parameter of a function; None without a signature."""
    signature = port_calls.signature_of(function)
    if signature is None:
        return None
    return [
        [
            each.name,
            int(each.kind),
            "" if each.annotation is each.empty else safe(each.annotation),
            None if each.default is each.empty else [each.default if isinstance(each.default, str) else None],
        ]
        for each in signature.parameters.values()
    ]


def _described_method(forward: Any, name: str) -> Any:
    try:
        return described_signature(port_calls.call_port(getattr, forward, name))
    except port_calls.PortCallError:  # a later call raises the same exception
        return None


def serve(connection: socket.socket) -> None:
    worker = Worker()
    while True:
        try:
            name, arguments, largest, released = wire.receive_request(connection)
        except wire.Closed:
            return
        try:
            worker.release(released)
            parts = wire.encoded(("returned", getattr(worker, name)(*arguments)), worker.keep, largest)
        except LoadError as error:
            parts = wire.encoded(("refused", str(error)), worker.keep, largest)
        except BaseException as error:  # noqa: BLE001 - any exception of a port, including exits, is an answer
            parts = wire.encoded(("raised", port_calls.describe_raised(error)), worker.keep, largest)
        wire.send_answer(connection, *parts)


def _end_with(checker: int) -> None:
    """End this process after the checker has ended, even during a call. The function polls, because a parent process
    that ends sends no signal to its children."""
    while os.getppid() == checker:
        time.sleep(1)
    os._exit(0)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=[os.getppid()], daemon=True).start()
    os.dup2(2, 1)  # keep the port's output out of the checker's report
    try:
        serve(connection)
    except OSError:  # the checker has ended
        pass
    finally:
        os._exit(0)  # end without running the port's threads and exit handlers


if __name__ == "__main__":
    main()
