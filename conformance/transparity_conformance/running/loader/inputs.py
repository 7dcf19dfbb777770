"""Inputs of a model as its caller gives them: names, arrays of its framework, and the mask that goes with tokens."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from transparity.config import TransformerConfig

Array = Callable[[np.ndarray], Any]

NAMES = {
    "tokens": ("input_ids", "tokens"),
    "pixels": ("pixel_values", "pixels"),
    "source": ("input_ids", "input_features"),
    "target": ("decoder_input_ids",),
    "attention_mask": ("attention_mask",),
    "token_types": ("token_type_ids", "token_types"),
}
"""The names under which a model may take each input of ours."""


def with_mask(inputs: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """The inputs and, where padding is masked by its token, the mask that a tokenizer would give with them."""
    is_masked = config.has_encoder or config.decoder_mask == "causal-and-padding"
    has_tokens = config.input_names[0] in config.token_inputs
    if "attention_mask" in inputs or config.pad_id is None or not is_masked or not has_tokens:
        return dict(inputs)
    is_token = inputs[config.input_names[0]] != config.pad_id
    return {**inputs, "attention_mask": is_token.astype(np.int64)}


def arguments(
    inputs: Mapping[str, np.ndarray], config: TransformerConfig, names: frozenset[str]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The inputs for a function with the parameters `names`: token ids by name or in order, the others by name."""
    called = {ours: next((name for name in NAMES[ours] if name in names), None) for ours in inputs}
    by_name = all(called[ours] is not None for ours in config.input_names)
    args = [] if by_name else [inputs[ours] for ours in config.input_names]
    given = [ours for ours in inputs if by_name or ours not in config.input_names]
    return args, {name: inputs[ours] for ours in given if (name := called[ours]) is not None}


def framework_of(model: Any) -> str:
    """`torch`, `jax`, `mlx` or `numpy`: the framework whose arrays a model takes.

    A module of PyTorch, nnx, Equinox or MLX tells by itself; of any other callable, what its function holds and then
    the names of its file tell, the first of torch (transformers), jax (flax, equinox) and mlx. Else it is NumPy.
    """
    if is_instance(model, "torch.nn", "Module"):
        return "torch"
    if is_instance(model, "flax.nnx", "Module") or is_instance(model, "equinox", "Module"):
        return "jax"
    if is_instance(model, "mlx.nn", "Module"):
        return "mlx"
    found = (FRAMEWORKS[package] for package in _packages_of(model) if package in FRAMEWORKS)
    return next(found, "numpy")


FRAMEWORKS = {
    "torch": "torch",
    "transformers": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "flax": "jax",
    "equinox": "jax",
    "mlx": "mlx",
    "mlx_lm": "mlx",
}
"""The framework of the arrays that a file with this package uses."""


def is_instance(model: Any, package: str, name: str) -> bool:
    """Return whether `model` is an instance of a framework's class, which is not imported for it."""
    kind = getattr(sys.modules.get(package), name, None)
    return isinstance(kind, type) and isinstance(model, kind)


def _packages_of(model: Any) -> Iterator[str]:
    """The packages of what a function (a method, or the class of an object) holds, and of the names of its file."""
    while isinstance(model, functools.partial):
        model = model.func
    function = getattr(inspect.unwrap(model), "__func__", inspect.unwrap(model))
    if not hasattr(function, "__globals__"):
        function = type(model).__call__
    cells = getattr(function, "__closure__", None) or ()
    for value in [cell.cell_contents for cell in cells]:
        yield from (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    for value in getattr(function, "__globals__", {}).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        yield name.partition(".")[0] if isinstance(name, str) else ""


def arrays(model: Any, framework: str) -> tuple[Array, Callable[[], contextlib.AbstractContextManager[Any]]]:
    """The conversion of token ids, or pixels, for a framework, and the context of a call without gradients."""
    if framework == "torch":
        import torch

        weights = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
        first = next(iter(weights), torch.zeros(1))

        def tensor(value: np.ndarray) -> Any:
            if value.dtype.kind == "f":
                return torch.from_numpy(np.array(value)).to(first)
            return torch.from_numpy(np.array(value, np.int64)).to(first.device)

        return tensor, torch.no_grad
    if framework == "jax":
        import jax.numpy as jnp

        return lambda value: jnp.asarray(value, None if value.dtype.kind == "f" else jnp.int32), contextlib.nullcontext
    if framework == "mlx":
        import mlx.core as mx

        return lambda value: mx.array(
            np.asarray(value, None if value.dtype.kind == "f" else np.int32)
        ), contextlib.nullcontext
    return np.array, contextlib.nullcontext
