"""Call Equinox modules, which take a batch or, as Equinox's manual recommends, a single sequence."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import signature_of
from transparity_conformance.running.frameworks.modules import ModuleTensor
from transparity_conformance.running.inputs import add_mask, arguments, taps_in


class EquinoxForward:
    """The forward pass of an Equinox module in inference mode. If the module takes a single sequence, a call is mapped
    over the batch. The object has all attributes of the module."""

    def __init__(self, model: Any, config: TransformerConfig) -> None:
        self._model, self._config = model, config
        signature = signature_of(model)
        self._names = frozenset() if signature is None else frozenset(signature.parameters)
        self._call: Callable[..., Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, **inputs: np.ndarray) -> Any:
        args, named = arguments(add_mask(inputs, self._config), self._config, self._names)
        given = (list(map(_ids, args)), {name: _ids(each) for name, each in named.items()})
        arrays, call = _called(self._model)
        if self._call is None:
            self._call = _as_its_users_do(call, arrays, *given, self._config)
        return self._call(arrays, *given)


def _called(model: Any) -> tuple[Any, Callable[..., Any]]:
    arrays, rest = eqx.partition(eqx.nn.inference_mode(model), eqx.is_array)

    def call(arrays: Any, args: list[Any], named: dict[str, Any]) -> Any:
        return eqx.combine(arrays, rest)(*args, **named)

    return arrays, call


def _as_its_users_do(
    call: Callable[..., Any], arrays: Any, args: list[Any], named: dict[str, Any], config: TransformerConfig
) -> Callable[..., Any]:
    """Return the compiled call; if the module takes a single sequence, map the call over the batch.

    A module takes a single sequence if it raises for a batch, or if its result for a sequence has no batch axis. If JAX
    can trace neither a call with a batch nor a call with a sequence, return the call uncompiled.
    """
    row = functools.partial(jax.tree.map, lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype))
    for_one, for_all = _axes(call, arrays, row(args), row(named), config), _axes(call, arrays, args, named, config)
    if for_one is None and for_all is None:
        return call
    if for_all is None or for_one == (1 if config.is_pooled else 2):
        return eqx.filter_jit(jax.vmap(call, in_axes=(None, 0, 0)))
    return eqx.filter_jit(call)


def _axes(call: Callable[..., Any], arrays: Any, args: Any, named: Any, config: TransformerConfig) -> int | None:
    try:
        answer = taps_in(eqx.filter_eval_shape(call, arrays, args, named), config).get("logits")
    except Exception:  # noqa: BLE001 - any exception means that the module rejects such arrays
        return None
    return len(getattr(answer, "shape", ()))


def _ids(value: np.ndarray) -> jax.Array:
    return jnp.asarray(value, jnp.int32)


forward_of = EquinoxForward


def tensors_of(model: Any) -> Iterator[tuple[str, ModuleTensor]]:
    """Yield the floating-point arrays by path; yield an array at several paths only once, under the first path."""
    places: dict[int, list[list[Any]]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(model)[0]:
        if eqx.is_inexact_array(leaf) and leaf.size:
            places.setdefault(id(leaf), []).append([_step(key) for key in path])
    for paths in places.values():
        read = lambda path=paths[0]: np.array(_at(model, path), np.float32)
        yield ".".join(map(str, paths[0])), ModuleTensor(read, functools.partial(_write, model, paths))


def _step(key: Any) -> Any:
    return next(getattr(key, each) for each in ("name", "idx", "key") if hasattr(key, each))


def _at(node: Any, path: list[Any]) -> Any:
    for step in path:
        node = getattr(node, step) if isinstance(step, str) and hasattr(node, step) else node[step]
    return node


def _write(model: Any, paths: list[list[Any]], numbers: np.ndarray) -> None:
    before = _at(model, paths[0])
    after = jnp.asarray(numbers.reshape(before.shape), before.dtype)
    for path in paths:
        _put(model, path, after)


def _put(node: Any, path: list[Any], value: Any) -> Any:
    """Replace the value at a path, even in frozen modules; return the changed node (a new one for tuples)."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(node, list | dict):
        node[step] = _put(node[step], rest, value)
    elif isinstance(node, tuple) and isinstance(step, int):
        return type(node)([*node[:step], _put(node[step], rest, value), *node[step + 1 :]])
    else:
        object.__setattr__(node, step, _put(getattr(node, step), rest, value))
    return node
