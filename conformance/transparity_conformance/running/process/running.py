"""Build a port, and run it on probes; every call of the port's code uses `call_port`, which catches its exceptions."""

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity.taps import lengths_of
from transparity.text import MESSAGE, VALUE, listed, safe
from transparity_conformance.capabilities.port_calls import (
    PortCallError,
    PortError,
    call_port,
    has_method,
    signature_of,
)
from transparity_conformance.capabilities.sharding import ALONE, Sharding
from transparity_conformance.checkpoints.importing import InFolder
from transparity_conformance.listening.operation import Operation
from transparity_conformance.matching.forms import within_sequence
from transparity_conformance.oracle.probes import Probe, as_given
from transparity_conformance.report.comparison import as_numbers
from transparity_conformance.running.frameworks.modules import of_build
from transparity_conformance.running.inputs import shapes_of, taps_in
from transparity_conformance.running.process import requests
from transparity_conformance.running.process.isolation import RemotePort
from transparity_conformance.running.process.ranks import isolated_of
from transparity_conformance.running.process.wire import MISSHAPEN
from transparity_conformance.storage.mapped import Mapped

Port = Callable[..., Callable[..., Any]]
"""A function `build(config, parameters)`, which returns `forward(source=…, target=…)` or `forward(tokens=…)`."""


def in_precision(build: Port, dtype: str) -> Port:
    """Bind the argument `dtype` of a `build` that takes the name of a dtype; return other ports unchanged."""
    signature = signature_of(build)
    if signature is None:
        return build
    parameter = signature.parameters.get("dtype")
    # If the default is not a string, the annotation may show that the port takes a name.
    takes_names = parameter is not None and (isinstance(parameter.default, str) or "str" in str(parameter.annotation))
    return functools.partial(build, dtype=str(dtype)) if takes_names else build


def built(build: Port, probe: Probe) -> Callable[..., Any]:
    try:
        forward = call_port(of_build, call_port(build, probe.config, given_to(build, probe.parameters)), probe.config)
    except PortCallError as error:
        raise PortError(f"build(config, parameters) raised {error}.") from error.__cause__
    if not callable(forward):
        raise PortError(f"build(config, parameters) returned {shown(forward)}; expected a function forward(**tokens).")
    return forward


def given_to(build: Port, parameters: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return the argument `parameters` for a port, usually copies of the parameters. An exported model gets `{}`,
    because it has its own weights. If no copy of a checkpoint's folder can be written, a loader gets the path of the
    checkpoint's own folder."""
    if getattr(isolated_of(build), "has_own_weights", False):
        return {}
    if not is_loader(build) and not hasattr(isolated_of(build), "process"):
        return {name: np.array(value) for name, value in parameters.items()}
    if is_loader(build) and isinstance(parameters, InFolder) and parameters.is_given_itself:
        return str(parameters.folder.absolute())
    return {name: value if isinstance(value, Mapped) else value.copy() for name, value in parameters.items()}


def is_loader(build: Port) -> bool:
    return model_type_of(build) is not None


def model_type_of(build: Port) -> str | None:
    return getattr(isolated_of(build), "model_type", None)


def folder_note(build: Port, parameters: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return a note that says why a loader received the checkpoint's own folder; return no note if the loader received
    a copy."""
    if not isinstance(parameters, InFolder) or parameters.is_ours or not is_loader(build):
        return ()
    if not parameters.is_given_itself:
        return ()
    stored = parameters.stored_as
    why = f"the weights are stored as {stored}" if stored else "a float32 copy does not fit into memory"
    return (f"load(folder) was given {parameters.folder} itself, not a float32 copy: {why}",)


def sharding_of(forward: Callable[..., Any]) -> Sharding:
    return forward.sharding() if isinstance(forward, RemotePort) else ALONE


def run(forward: Callable[..., Any], probe: Probe, *, logits_only: bool = False) -> Mapping[str, np.ndarray]:
    """Run a port on a probe; return its activations by name. Check the names and types, but not the shapes."""
    return _known(_returned(forward, forward, probe), probe, logits_only)


def run_listening(
    forward: Callable[..., Any], probe: Probe, *, whole_numbers: bool = False
) -> tuple[Mapping[str, np.ndarray], list[Operation]]:
    """Run a port on a probe; return its activations and operations. With `whole_numbers`, also record integers.

    Leave out operations whose values would make the record larger than `largest_answer() / 2` bytes. Recording disables
    compilers (`jit`, `torch.compile`), so the activations may differ from the result of `run` by rounding errors. The
    values of preallocated buffers are cut to the sequence length.
    """
    listened = functools.partial(_listened, forward, "", whole_numbers=whole_numbers)
    returned, operations = _returned(listened, forward, probe)
    lengths = lengths_of(probe.config, probe.inputs).values()
    return _known(returned, probe, logits_only=False), within_sequence(operations, lengths)


def listen_in_full(forward: Any, method: str, *args: Any, **named: Any) -> tuple[Any, list[Operation]]:
    """Call a port's method (if "", the forward pass); return its result and all operations, even on integers."""
    answer: tuple[Any, list[Operation]] = call_port(_listened, forward, method, *args, whole_numbers=True, **named)
    return answer


def offers(forward: Any, method: str) -> bool:
    return forward.offers(method) if isinstance(forward, RemotePort) else has_method(forward, method)


def ask(forward: Any, method: str, *args: Any, **named: Any) -> Any:
    if isinstance(forward, RemotePort) and method:
        return forward.asked(method, *args, **named)
    return call_port(getattr(forward, method) if method else forward, *args, **named)


def _listened(
    forward: Any, method: str, /, *args: Any, whole_numbers: bool = False, **named: Any
) -> tuple[Any, list[Operation]]:
    if isinstance(forward, RemotePort):
        return forward.listened(method, *args, whole_numbers=whole_numbers, **named)
    return requests.listen(forward, method, args, named, None, None, whole_numbers)


def _returned(call: Callable[..., Any], forward: Callable[..., Any], probe: Probe) -> Any:
    inputs = {name: as_given(value) for name, value in probe.inputs.items()}
    try:
        return call_port(call, **inputs)
    except PortCallError as error:
        signature, called = signature_of(forward), ", ".join(f"{name}=…" for name in inputs)
        takes = "" if signature is None else f"; it takes {safe(signature, VALUE)}"
        says = f"forward({called}) raised {error} on the probe {probe.name!r}{takes}."
        raise PortError(says) from error.__cause__


def _known(returned: Any, probe: Probe, logits_only: bool) -> Mapping[str, np.ndarray]:
    try:
        taps = call_port(taps_in, returned, probe.config)
    except PortCallError as error:
        raise PortError(f"forward returned {shown(returned)}, which cannot be read: reading raised {error}.") from None
    known = shapes_of(probe.config, probe.inputs)
    most = sum(math.prod(shape) for shape in known.values()) + MISSHAPEN // 8
    if strange := [name for name in taps if not isinstance(name, str) or name not in known]:
        some = ", ".join([*known][:4])
        raise PortError(
            f"forward returned {shown(strange[0])}, which is not the name of an activation; the names are {some}, … "
            "and logits."
        )
    if "logits" not in taps:
        raise PortError(f"forward returned {listed(taps) or 'nothing'}; expected at least 'logits'.")
    result = probe.room()
    for name in known if not logits_only else ["logits"]:
        if name in taps:
            result[name] = _array(name, taps[name], most)
    return result


def _array(name: str, value: Any, most: int) -> np.ndarray:
    """Convert an activation to float64; check its size first, because a view of one number may have any size."""
    try:
        array = call_port(as_numbers, value)
    except PortCallError as error:
        raise PortError(
            f"{name} is {shown(value)}, which is not an array of numbers ({safe(error, MESSAGE)})."
        ) from None
    if array.dtype.kind not in "fiu":
        raise PortError(
            f"{name} is {shown(value)}, which is not an array of numbers: its dtype is {safe(array.dtype, VALUE)}."
        )
    if array.size > most:
        raise PortError(f"{name} has {array.size:,} elements; the checker reads at most {most:,}.")
    return np.array(array, np.float64)
