"""The tensors of a model, whatever its framework: found by name, read and written as NumPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from transparity_conformance.running.frameworks.modules import Tensor, contents_of, kind_of
from transparity_conformance.running.inputs import is_instance

STATISTICS = ("running_mean", "running_var")
"""Of a batch norm: buffers that are parameters of ours."""


def tensors_of(model: Any) -> dict[str, Tensor]:
    """The tensors of a module, or of nested dicts and lists, by name; none if there are none.

    They are those that are learned: buffers (masks, rotary tables) are left out, but for the statistics of a batch
    norm. Two names of one memory are one tensor, under its first name.
    """
    if (kind := kind_of(model)) is not None:
        return dict(kind.tensors_of(model))
    if is_instance(model, "torch.nn", "Module"):
        return dict(_of_torch(model))
    if is_instance(model, "flax.nnx", "Module"):
        return dict(_of_nnx(model))
    return dict(_leaves("", model))


def buffers_of(model: Any) -> dict[str, Tensor]:
    """The buffers of a module of PyTorch that are saved with it, and what it has frozen beside what is learned (the
    sinusoids of Whisper); none of anything else."""
    if not is_instance(model, "torch.nn", "Module"):
        return {}
    saved = model.state_dict(keep_vars=True)
    buffers = {name: value for name, value in model.named_buffers() if name in saved and not name.endswith(STATISTICS)}
    learned = tensors_of(model)
    frozen = {
        name: value for name, value in model.named_parameters() if not value.requires_grad and name not in learned
    }
    every = frozen | buffers
    return {name: _tensor(value) for name, value in every.items() if value.is_floating_point() and value.numel()}


def tensors_inside(function: Any) -> dict[str, Tensor]:
    """The tensors of the model that a function holds: itself, the object that it is a method of, its attributes, or
    what it closes over or names."""
    return next((tensors for node in contents_of(function) if (tensors := tensors_of(node))), {})


def package_of(node: Any) -> str:
    """The package of the first array in nested dicts and lists."""
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        found = package_of(value) if isinstance(value, dict | list) else type(value).__module__.partition(".")[0]
        if found:
            return found
    return ""


def _of_torch(model: Any) -> Iterator[tuple[str, Tensor]]:
    every = list(model.named_parameters())
    trained = [(name, value) for name, value in every if value.requires_grad]
    if not any(value.ndim > 1 for _, value in trained):  # made for inference, where all maps are frozen
        trained = every
    buffers = [(name, value) for name, value in model.named_buffers() if name.endswith(STATISTICS)]
    known = set()
    for name, value in [*trained, *buffers]:
        key = (value.data_ptr(), tuple(value.shape), value.stride())
        if value.is_floating_point() and value.numel() and key not in known:
            known.add(key)
            yield name, _tensor(value)


def _tensor(value: Any) -> Tensor:
    return Tensor(functools.partial(_torch_numbers, value), functools.partial(_torch_write, value))


def _torch_numbers(value: Any) -> np.ndarray:
    import torch

    return value.detach().to("cpu", torch.float32, copy=True).numpy()


def _torch_write(value: Any, numbers: np.ndarray) -> None:
    import torch

    with torch.no_grad():
        value.copy_(torch.from_numpy(np.ascontiguousarray(numbers)).view(value.shape))


def _of_nnx(model: Any) -> Iterator[tuple[str, Tensor]]:
    from flax import nnx

    for path, variable in nnx.state(model).flat_state():
        is_kept = isinstance(variable, nnx.Param | nnx.BatchStat)
        if is_kept and variable[...].dtype.kind == "f":
            read, write = functools.partial(_nnx_numbers, variable), functools.partial(_nnx_write, model, path)
            yield ".".join(map(str, path)), Tensor(read, write)


def _nnx_numbers(variable: Any) -> np.ndarray:
    return np.array(variable[...], np.float32)


def _nnx_write(model: Any, path: tuple[Any, ...], numbers: np.ndarray) -> None:
    import jax.numpy as jnp

    part = model
    for step in path:
        part = part[step] if isinstance(step, int) or not hasattr(part, str(step)) else getattr(part, str(step))
    part[...] = jnp.asarray(numbers.reshape(part.shape), part.dtype)


def _leaves(name: str, node: Any) -> Iterator[tuple[str, Tensor]]:
    """The arrays in nested dicts and lists, which are replaced where they are."""
    items: Any = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        path = f"{name}.{key}" if name else str(key)
        if isinstance(value, dict | list):
            yield from _leaves(path, value)
        elif is_instance(value, "torch", "Tensor"):
            if value.is_floating_point() and value.numel():
                yield path, _tensor(value)
        elif hasattr(value, "dtype") and np.dtype(value.dtype).kind == "f" and np.size(value):
            yield path, Tensor(functools.partial(_leaf, node, key), functools.partial(_replace, node, key))


def _leaf(node: Any, key: Any) -> np.ndarray:
    return np.array(node[key], np.float32)


def _replace(node: Any, key: Any, numbers: np.ndarray) -> None:
    value = node[key]
    if isinstance(value, np.ndarray):
        value[...] = numbers.reshape(value.shape)
        return
    import jax.numpy as jnp

    node[key] = jnp.asarray(numbers.reshape(value.shape), value.dtype)
