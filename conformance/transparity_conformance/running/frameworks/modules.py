"""Modules by framework: their protocol, the one that a function contains, and those of PyTorch in float64."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Protocol, cast

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.running.inputs import input_names, is_instance, settings_of


@dataclass(frozen=True)
class Tensor:
    """A tensor, as NumPy reads and writes it."""

    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


class Kind(Protocol):
    """The modules of a framework."""

    def forward_of(self, model: Any, config: TransformerConfig) -> Callable[..., Any]:
        """The forward pass `forward(**inputs)` of NumPy arrays, as the framework's users call a module."""

    def tensors_of(self, model: Any) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that are learned, by their path in the module."""


CLASSES = (("keras", "Layer", "keras"), ("equinox", "Module", "equinox"))
"""Package and class of modules, and the file here that is their `Kind`. Keras is first: on PyTorch, a layer is a
`torch.nn.Module`, too."""


def kind_of(model: Any) -> Kind | None:
    """The kind of a module; None if it is called with arrays in batches, like any function."""
    name = next((file for package, kind, file in CLASSES if is_instance(model, package, kind)), None)
    return None if name is None else cast(Kind, importlib.import_module(f"{__package__}.{name}"))


def of_build(made: Any, config: TransformerConfig) -> Any:
    """The forward pass of what `build(config, parameters)` returned: a module of a kind here is called as its own."""
    kind = kind_of(made)
    return made if kind is None else kind.forward_of(made, config)


def module_in(function: Any) -> Any:
    """The module of PyTorch that a function is or holds; None if there is none."""
    return next((node for node in contents_of(function) if is_instance(node, "torch.nn", "Module")), None)


def contents_of(function: Any) -> Iterator[Any]:
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


def is_module(port: Any) -> bool:
    """Return whether a port is a module itself, and no function that makes one."""
    return any(
        is_instance(port, package, name)
        for package, name in (("torch.nn", "Module"), ("flax.nnx", "Module"), ("flax.linen", "Module"))
    )


def initialised(module: Any) -> tuple[Callable[..., Any], Any]:
    """A module of flax's linen as a pair (function, parameters), with parameters that it draws."""
    import jax
    import jax.numpy as jnp

    takes = inspect.signature(module.__call__)
    names, settings = input_names(takes), settings_of(takes)
    tokens = {name: jnp.zeros((1, 2), jnp.int32) for name in names.values()}
    variables = module.init(jax.random.key(0), **tokens, **settings)

    def function(variables: Any, *args: Any, **named: Any) -> Any:
        return module.apply(variables, *args, **named)

    first = inspect.Parameter("variables", inspect.Parameter.POSITIONAL_ONLY)
    function.__signature__ = takes.replace(parameters=[first, *takes.parameters.values()])  # type: ignore[attr-defined]
    return function, variables


@contextlib.contextmanager
def kept(port: Any) -> Iterator[None]:
    """Put back, after the context, the weights and the mode of a module of PyTorch that a port is or holds."""
    module = module_in(port)
    if module is None:
        yield
        return
    undo = _undo(module, {id(value): value.detach().clone() for value in (*module.parameters(), *module.buffers())})
    modes = [(each, each.training) for each in module.modules()]
    try:
        yield
    finally:
        undo()
        for each, mode in modes:
            each.training = mode


def widened(module: Any) -> Callable[[], None]:
    """Turn a module of PyTorch to float64; return what undoes it."""
    undo = _undo(module, {})
    module.double()
    return undo


def _undo(module: Any, copies: Mapping[int, Any]) -> Callable[[], None]:
    """A function that gives a module the tensors that it has now, or their copies."""
    parameters = [(value, copies.get(id(value), value.data)) for value in module.parameters()]
    buffers = [
        (each, name, copies.get(id(value), value)) for each in module.modules() for name, value in each._buffers.items()
    ]

    def undo() -> None:
        for parameter, value in parameters:
            parameter.data = value
        for each, name, value in buffers:
            each._buffers[name] = value

    return undo
