"""A port's model: made, its tensors read and set, and called with token ids."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.capabilities.stranger import PortCallError, PortError, call_stranger, signature_of
from transparity_conformance.ports.adapters.adapter import Adapter
from transparity_conformance.ports.loader.hub import called, required_arguments
from transparity_conformance.ports.loader.inputs import FRAMEWORKS, is_instance

Make = Callable[..., Any]
"""`Model()` or `Model(config)`: a class of modules, or a function that makes one."""


class Model:
    """A model and its tensors; a call is a forward pass.

    Tensors are those that are learned: buffers (masks, rotary tables) are left alone, but for the running statistics
    of a batch norm. Two names of one memory are one tensor, under its first name.
    """

    def __init__(self, made: Any, config: TransformerConfig) -> None:
        model, self._parts = _parted(made)
        self._forward = called(model, config) if self._parts is None else _with_parts(model, self._parts, config)
        self._tensors = dict(_learned(model) if self._parts is None else _leaves("", self._parts))
        if not self._tensors:
            raise PortError(
                f"The port made {shown(made)}, in which no tensor was found; expected a torch.nn.Module, a "
                "flax.nnx.Module, or a pair (function, parameters) whose function takes the parameters first."
            )

    def __call__(self, **tokens: np.ndarray) -> Any:
        return self._forward(**tokens)

    def tensors(self) -> dict[str, np.ndarray]:
        """The tensors by name, as they are."""
        return {name: tensor.read() for name, tensor in self._tensors.items()}

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Write into the tensors."""
        for name, value in values.items():
            self._tensors[name].write(value)


class _Tensor:
    """A tensor of a framework, as NumPy reads and writes it."""

    def __init__(self, read: Callable[[], np.ndarray], write: Callable[[np.ndarray], None]) -> None:
        self.read, self.write = read, write


def made_by(make: Make, config: TransformerConfig) -> Model:
    """Make the model; raises `PortError` with the reason if it cannot be made or has no tensors."""
    count = required_arguments(signature_of(make))
    name = getattr(make, "__name__", "Model")
    if count not in (0, 1, None):
        raise PortError(
            f"{name} takes {count} arguments; expected none, or one, the configuration: write a function that makes "
            "the model, def model(config): return Model(…)."
        )
    given = () if count == 0 else (config,)
    try:
        return call_stranger(Model, call_stranger(make, *given), config)
    except PortCallError as error:
        what = "transparity's configuration" if given else "nothing"
        raise PortError(
            f"{name} was given {what}, and raised {error}; if it needs sizes in another form, write a function that "
            "makes the model, def model(config): return Model(…)."
        ) from error.__cause__


def opened(make: Make) -> Callable[..., Model]:
    """`build(config, parameters)` of a port that keeps its own weights."""

    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Model:
        return made_by(make, config)

    return build


def adapted(make: Make, adapter: Adapter) -> Callable[..., Model]:
    """`build(config, parameters)` of a port whose tensors an adapter matches with our parameters."""

    @functools.wraps(make, updated=())
    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Model:
        model = made_by(make, config)
        model.assign(adapter.tensors(config, parameters, model.tensors()))
        return model

    del build.__wrapped__
    return build


def _parted(made: Any) -> tuple[Any, Any]:
    """The model and, of a pair (function, parameters), its parameters."""
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        return made
    return made, None


def _with_parts(function: Any, parts: Any, config: TransformerConfig) -> Callable[..., Any]:
    """The forward pass of a function of its parameters, of whose framework the token ids are."""
    package = next((type(leaf).__module__.partition(".")[0] for leaf in _arrays(parts)), "numpy")
    return called(functools.partial(function, parts), config, FRAMEWORKS.get(package, "numpy"))


def _arrays(node: Any) -> Iterator[Any]:
    items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for value in items:
        yield from _arrays(value) if isinstance(value, dict | list) else [value]


def _learned(model: Any) -> Iterator[tuple[str, _Tensor]]:
    if is_instance(model, "torch.nn", "Module"):
        yield from _of_torch(model)
    elif is_instance(model, "flax.nnx", "Module"):
        yield from _of_nnx(model)
    else:
        yield from _leaves("", getattr(model, "params", None) or getattr(model, "parameters", None) or {})


def _of_torch(model: Any) -> Iterator[tuple[str, _Tensor]]:
    statistics = ("running_mean", "running_var")
    every = list(model.named_parameters())
    trained = [(name, value) for name, value in every if value.requires_grad] or every
    buffers = [(name, value) for name, value in model.named_buffers() if name.endswith(statistics)]
    known = set()
    for name, value in [*trained, *buffers]:
        key = (value.data_ptr(), tuple(value.shape), value.stride())
        if value.is_floating_point() and value.numel() and key not in known:
            known.add(key)
            yield name, _Tensor(functools.partial(_torch_numbers, value), functools.partial(_torch_write, value))


def _torch_numbers(value: Any) -> np.ndarray:
    import torch

    return value.detach().to("cpu", torch.float32, copy=True).numpy()


def _torch_write(value: Any, numbers: np.ndarray) -> None:
    import torch

    with torch.no_grad():
        value.copy_(torch.from_numpy(np.ascontiguousarray(numbers)).view(value.shape))


def _of_nnx(model: Any) -> Iterator[tuple[str, _Tensor]]:
    from flax import nnx

    for path, variable in nnx.state(model).flat_state():
        name = ".".join(map(str, path))
        is_kept = isinstance(variable, nnx.Param | nnx.BatchStat)
        if is_kept and variable[...].dtype.kind == "f":
            yield name, _Tensor(functools.partial(_nnx_numbers, variable), functools.partial(_nnx_write, model, path))


def _nnx_numbers(variable: Any) -> np.ndarray:
    return np.array(variable[...], np.float32)


def _nnx_write(model: Any, path: tuple[Any, ...], numbers: np.ndarray) -> None:
    import jax.numpy as jnp

    part = model
    for step in path:
        part = part[step] if isinstance(step, int) or not hasattr(part, str(step)) else getattr(part, str(step))
    part[...] = jnp.asarray(numbers.reshape(part.shape), part.dtype)


def _leaves(name: str, node: Any) -> Iterator[tuple[str, _Tensor]]:
    """The arrays in nested dicts and lists, which are replaced where they are."""
    items: Any = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        path = f"{name}.{key}" if name else str(key)
        if isinstance(value, dict | list):
            yield from _leaves(path, value)
        elif hasattr(value, "dtype") and np.dtype(value.dtype).kind == "f" and np.size(value):
            yield path, _Tensor(functools.partial(_leaf, node, key), functools.partial(_replace, node, key))


def _leaf(node: Any, key: Any) -> np.ndarray:
    return np.array(node[key], np.float32)


def _replace(node: Any, key: Any, numbers: np.ndarray) -> None:
    value = node[key]
    if isinstance(value, np.ndarray):
        value[...] = numbers.reshape(value.shape)
        return
    import jax.numpy as jnp

    node[key] = jnp.asarray(numbers.reshape(value.shape), value.dtype)
