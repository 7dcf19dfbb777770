"""Modules of frameworks: which are such, the parameters of flax's linen, and PyTorch's in float64."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from transparity_conformance.running.loader.free import input_names
from transparity_conformance.running.loader.held import module_in
from transparity_conformance.running.loader.inputs import is_instance
from transparity_conformance.running.loader.settings import settings_of

CLASSES = (("torch.nn", "Module"), ("flax.nnx", "Module"), ("flax.linen", "Module"))


def is_module(port: Any) -> bool:
    """Return whether a port is a module itself, and no function that makes one."""
    return any(is_instance(port, package, name) for package, name in CLASSES)


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
