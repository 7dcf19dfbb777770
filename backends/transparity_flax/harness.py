"""The JAX column's `transparity.protocol.Harness`: access to the column's functions and modules by name."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import flax
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import Array

from transparity.config import TransformerConfig
from transparity.protocol import Arrays
from transparity.taps import recording
from transparity_flax.layers import LAYERS
from transparity_flax.layers.sequential import Layer
from transparity_flax.mixers.attention import attention
from transparity_flax.port import build, loaded, x64_for
from transparity_flax.state.context import Context, Mask
from transparity_flax.state.parameters import State, dump, rounded, to_numpy

SHARDED = "transparity_flax.parallel.port"


class FlaxModule:
    """A `transparity.protocol.Module` that calls a compiled `nnx.Module` of this package with NumPy arrays."""

    def __init__(self, module: nnx.Module, dtype: str, device: jax.Device) -> None:
        self.module, self.dtype, self.device = module, dtype, device

    def __call__(
        self, *arrays: Any, context: Mapping[str, Any] | None = None, taps: dict[str, Any] | None = None, **named: Any
    ) -> Any:
        graph, state = nnx.split(self.module)
        with x64_for(self.dtype):
            given = [_placed(array, self.dtype, self.device) for array in arrays]
            keywords = {name: _placed(array, self.dtype, self.device) for name, array in named.items()}
            if context is not None:
                held = {name: _placed(value, self.dtype, self.device) for name, value in context.items()}
                held |= {name: Mask(held[name]) for name in ("mask", "memory_mask") if held.get(name) is not None}
                keywords["context"] = {"mask": None, "positions": None, "is_token": None} | held
            result, recorded, state = _applied(graph, taps is not None, state, given, keywords)
            nnx.update(self.module, state)
        if taps is not None:
            taps |= {name: to_numpy(value) for name, value in recorded.items()}
        return to_numpy(result)

    def use_batch_statistics(self) -> None:
        self.module.set_attributes(use_running_average=False, raise_if_not_found=False)

    def parameters(self) -> dict[str, np.ndarray]:
        return dump(self.module)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _applied(
    graph: nnx.GraphDef[Any], with_taps: bool, state: State, arrays: list[Any], named: dict[str, Any]
) -> tuple[jax.Array, dict[str, jax.Array], State]:
    """Return the module's result, the activations (with `with_taps`), and the module's state, which batch norms
    update."""
    part: Any = nnx.merge(graph, state)
    recorded: dict[str, jax.Array] = {}
    tap: dict[str, Any] = {"tap": recording(recorded)} if with_taps else {}
    given = named | ({"context": Context(**named["context"], **tap)} if "context" in named else tap)
    result = part(*arrays, **given)
    return result, recorded, nnx.state(part)


def function(name: str, *, dtype: str | None = None, device: str = "cpu") -> Callable[..., Any]:
    dtype, found, place = build.checked_dtype(dtype, device), _named(name), jax.devices(device)[0]

    def on_arrays(*arrays: Any, **named: Any) -> Any:
        with x64_for(dtype):
            given = [_placed(array, dtype, place) for array in arrays]
            keywords = {name: _placed(array, dtype, place) for name, array in named.items()}
            result = _compiled(found, given, keywords)(*given, **keywords)
            return tuple(map(_array, result)) if isinstance(result, tuple) else _array(result)

    return on_arrays


def module(
    name: str, config: TransformerConfig, parameters: Arrays, *, dtype: str | None = None, device: str = "cpu"
) -> FlaxModule:
    dtype, place = build.checked_dtype(dtype, device), jax.devices(device)[0]
    return FlaxModule(loaded(_named(name), config, parameters, dtype, place), dtype, place)


def einsum(subscripts: str, *arrays: np.ndarray) -> np.ndarray:
    return to_numpy(jnp.einsum(subscripts, *arrays))


def describe(device: str) -> dict[str, str]:
    precision = jax.config.jax_default_matmul_precision or "default"  # type: ignore[attr-defined]
    versions = {"jax": jax.__version__, "flax": flax.__version__, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
    return versions | {"device": jax.devices(device)[0].device_kind, "matmul": f"float32 {precision}"}


@contextmanager
def pinned() -> Iterator[None]:
    with jax.default_matmul_precision("highest"):
        yield


def processes(ranks: int) -> int:
    return 1


def _encoder_layer(config: TransformerConfig, *, rngs: nnx.Rngs) -> Layer:
    return LAYERS[config.branches](config, rngs=rngs)


def _decoder_layer(config: TransformerConfig, *, rngs: nnx.Rngs) -> Layer:
    return LAYERS[config.branches](config, rngs=rngs, has_memory=config.has_encoder)


def _attention(query: Any, key: Any, value: Any, mask: Any, *, config: TransformerConfig, **named: Any) -> Array:
    sinks, given = named.pop("sinks", None), {"mask": Mask(mask), "positions": None, "is_token": None} | named
    return attention(config, query, key, value, Context(**given), sinks)


PARTS: dict[str, Callable[..., Any]] = {
    "layers.EncoderLayer": _encoder_layer,
    "layers.DecoderLayer": _decoder_layer,
    "mixers.attention.attention": _attention,
}


def _named(name: str) -> Callable[..., Any]:
    if name in PARTS:
        return PARTS[name]
    file, _, attribute = name.rpartition(".")
    found: Callable[..., Any] = getattr(importlib.import_module(f"transparity_flax.{file}"), attribute)
    return found


def _compiled(function: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> Callable[..., Any]:
    """Compile `function`; arguments that are not arrays are static. If no argument is an array, return `function`."""
    if not any(isinstance(value, jax.Array) for value in [*arguments, *named.values()]):
        return function
    numbers = [place for place, value in enumerate(arguments) if not isinstance(value, jax.Array)]
    names = [name for name, value in named.items() if not isinstance(value, jax.Array)]
    return jax.jit(function, static_argnums=numbers, static_argnames=names)


def _placed(value: Any, dtype: str, device: jax.Device) -> Any:
    """Move an array to `device`, and cast floats to `dtype`; return any other value unchanged."""
    if not isinstance(value, np.ndarray):
        return value
    return jax.device_put(rounded(value, dtype if value.dtype.kind == "f" else value.dtype), device)


def _array(value: Any) -> Any:
    return to_numpy(value) if isinstance(value, jax.Array) else value
