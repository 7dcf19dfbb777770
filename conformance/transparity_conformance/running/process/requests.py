"""The requests that the checker sends to a port's process: functions that run there, and their results.

The process replaces handles among the arguments by its objects. A result that cannot be sent, or that is `Kept`, stays
in the process, and the checker gets a handle.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.text import safe, shown
from transparity_conformance.capabilities import port_calls
from transparity_conformance.listening.listen import listen_once
from transparity_conformance.running.adapters.adapter import read_adapter
from transparity_conformance.running.adapters.model import adapted, made_by
from transparity_conformance.running.artefacts import runtime_of
from transparity_conformance.running.forward import add_tensors, called_by_its_names, filled_by_name
from transparity_conformance.running.frameworks.modules import bound, of_build
from transparity_conformance.running.hub import HubBuild
from transparity_conformance.running.inputs import taps_in
from transparity_conformance.running.loading import Listened, load_artefact, load_port
from transparity_conformance.running.process.wire import Kept, Recorded, largest_answer
from transparity_conformance.storage.mapped import Mapped


def load(spec: str, adapter: str | None, variables: Mapping[str, str]) -> Any:
    """Load the function or the exported model that `spec` names; return the loaded object and its signature.

    If `adapter` is the path of an adapter, the function builds a model, and the adapter's lines fill the model's
    tensors. If `adapter` is empty, the model keeps its own weights. `variables` are environment variables to set,
    unless the port's file has already set them.
    """
    runtime = runtime_of(spec)
    build = load_port(spec) if runtime is None else load_artefact(spec, runtime)
    for variable, value in variables.items():
        os.environ.setdefault(variable, value)
    if adapter is not None:
        build = adapted(build, read_adapter(adapter)) if adapter else functools.partial(made_by, build)
    return Kept(build), described_signature(build)


def limits(build: Any) -> dict[str, Any]:
    return dataclasses.asdict(build.limits)


def placements(port: Any) -> Any:
    declared = getattr(port, "placements", {})
    return dict(declared) if isinstance(declared, Mapping) else shown(declared)


def call(port: Any, method: str, args: Any, named: Any, stays: int | None = None, config: Any = None) -> Any:
    """Call a port or, if `method` is not empty, a method of the port. With a `config`, return only the activations in
    the result. If the result is a sequence, the item at the index `stays`, such as a cache, stays in the process."""
    with port_calls.tokens_kept(args, named):
        result = (getattr(port, method) if method else port)(*args, **named)
    if config is not None:
        return taps_in(result, config)
    if stays is None or not isinstance(result, tuple | list):
        return result
    return [Kept(item) if index == stays else item for index, item in enumerate(result)]


def listen(
    port: Any, method: str, args: Any, named: Any, stays: int | None, config: Any, whole_numbers: bool
) -> Recorded:
    """Call a port or its method, as `call` does; return the result and the recorded operations.

    With `whole_numbers`, record operations on integers and bools, too. An exported model records its own operations;
    with `whole_numbers`, the record of an exported model is empty.
    """
    largest = largest_answer() // 2
    if not isinstance(port, Listened):
        function = functools.partial(call, port, method, stays=stays, config=config)
        return Recorded(*listen_once(function, (args, named), {}, largest=largest, whole_numbers=whole_numbers))
    if whole_numbers:
        return Recorded(call(port, method, args, named, stays, config), [])
    result, operations = port.listened(largest, **named)
    return Recorded(taps_in(result, config), operations)


def build(port: Any, args: Any, named: Any, attributes: list[str], family: tuple[Any, ...] | None = None) -> Any:
    """Build a port; return the built object, its signature, and the signatures of its methods.

    With a `family`, `port` is a loader of Hugging Face folders. `family` contains the model type, a folder for
    temporary files, and the `Edit` of each folder.

    If the built object is not callable, return (None, a description of the object, {}). If building fails, return
    (None, the error message, None).
    """
    make = port if family is None else HubBuild(port, *family)
    if family is None:
        args = [args[0], *map(_in_memory, args[1:])]
    try:
        with port_calls.tokens_kept(args, named):
            forward = of_build(make(*args, **named), args[0])
    except port_calls.PortError as error:
        return None, safe(error), None
    if not callable(forward):
        return None, shown(forward), {}
    offered = {name: _described_method(forward, name) for name in attributes if port_calls.has_method(forward, name)}
    return Kept(forward), described_signature(forward), offered


def reported(load: Any, model_type: str, root: str, folder: str, names: list[str]) -> list[str]:
    return HubBuild(load, model_type, root).reported(folder, names)


def model(make: Any, folder: str | None, weights: Mapping[str, np.ndarray] | None) -> Any:
    """Load a folder, or build a module. If the module's tensors have the names and shapes of `weights`, fill the module
    with `weights`.

    Return the forward pass, its signature, and whether the module contains the weights. The forward pass takes inputs
    by the model's own names.
    """
    made = bound(make(*([] if folder is None else [folder])))
    is_filled = weights is None or filled_by_name(made, weights)
    forward = called_by_its_names(made)
    if not is_filled:
        add_tensors(forward, made)
    return Kept(forward), described_signature(forward), is_filled


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
