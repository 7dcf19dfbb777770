"""Read and write the tensors of modules of any framework, and find the module that a function uses."""

import contextlib
import functools
import importlib
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Protocol, cast

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.listening.program import STATISTICS, learned_of
from transparity_conformance.running.inputs import input_names, is_instance, settings_of


@dataclass(frozen=True)
class ModuleTensor:
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


class Kind(Protocol):
    """The functions that call the modules of one framework, and find their tensors."""

    def forward_of(self, model: Any, config: TransformerConfig) -> Callable[..., Any]:
        """Return `forward(**inputs)`, which takes NumPy arrays and calls the module as the framework's users do."""

    def tensors_of(self, model: Any) -> Iterator[tuple[str, ModuleTensor]]:
        """Yield the learned tensors, named by their path in the module."""


CLASSES = (("keras", "Layer", "keras"), ("equinox", "Module", "equinox"))
"""For each framework with a `Kind`: the package and class of its modules, and the file that implements the `Kind`."""


def kind_of(model: Any) -> Kind | None:
    name = next((file for package, kind, file in CLASSES if is_instance(model, package, kind)), None)
    return None if name is None else cast(Kind, importlib.import_module(f"{__package__}.{name}"))


def of_build(made: Any, config: TransformerConfig) -> Any:
    kind = kind_of(made)
    return made if kind is None else kind.forward_of(made, config)


def module_in(function: Any) -> Any:
    return next((node for node in contents_of(function) if is_instance(node, "torch.nn", "Module")), None)


def contents_of(function: Any) -> Iterator[Any]:
    """Yield a function, and the objects that it uses through closures, attributes and globals, the nearest first."""
    waiting, seen = [function], set()
    while waiting:
        node = waiting.pop(0)
        if id(node) in seen or isinstance(node, ModuleType):
            continue
        seen.add(id(node))
        yield node
        cells = getattr(node, "__closure__", None) or ()
        closed = dict(zip(getattr(getattr(node, "__code__", None), "co_freevars", ()), cells, strict=False))
        parts = {name: cell.cell_contents for name, cell in closed.items()}
        parts |= getattr(node, "__dict__", {}) if not isinstance(node, type) else {}
        waiting += [getattr(node, name) for name in ("__self__", "func") if hasattr(node, name)]
        waiting += node.args if isinstance(node, functools.partial) else ()
        yield {name: part for name, part in parts.items() if isinstance(part, dict | list)}
        waiting += [*parts.values(), *_named_by(node)]


def _named_by(function: Any) -> Iterator[Any]:
    """Yield the PyTorch modules, and the functions of the same file, that a function uses as globals."""
    if not isinstance(function, FunctionType):
        return
    for name in function.__code__.co_names:
        found = function.__globals__.get(name)
        is_near = isinstance(found, FunctionType) and found.__globals__ is function.__globals__
        if is_near or is_instance(found, "torch.nn", "Module"):
            yield found


def is_module(port: Any) -> bool:
    return any(
        is_instance(port, package, name)
        for package, name in (("torch.nn", "Module"), ("flax.nnx", "Module"), ("flax.linen", "Module"))
    )


def bound(made: Any) -> Any:
    """Return a function of the inputs for a linen module, which gets new parameters, or for a pair (function or linen
    module, parameters). Return other objects unchanged."""
    if is_instance(made, "flax.linen", "Module"):
        made = initialised(made)
    if not (isinstance(made, tuple) and len(made) == 2):
        return made
    function, parameters = made
    function = applied(function) if is_instance(function, "flax.linen", "Module") else function
    return functools.partial(function, parameters) if callable(function) else made


SPREAD = 0.3
"""The standard deviation of the noise that replaces or multiplies the elements of a constant parameter."""


def varied(made: Any) -> Any:
    """Add noise to the parameters that a new module fills with one number, such as 0, or with the numbers of an earlier
    parameter. Without noise, the module's output would not show whether a port uses these parameters."""
    model = bound(made)
    if not (is_module(made) or kind_of(made) is not None):
        return model
    random, known = np.random.default_rng(0), set[bytes]()
    for tensor in tensors_inside(model).values():
        value = tensor.read()
        if value.size > 1 and ((value == value.flat[0]).all() or value.tobytes() in known):
            noise = SPREAD * random.standard_normal(value.shape)
            is_scale = abs(value).max() > SPREAD  # a smaller factor, as of some residual branches, hides the branch
            tensor.write((value * np.exp(noise) if is_scale else noise).astype(np.float32))
        known.add(value.tobytes())
    return model


def initialised(module: Any) -> tuple[Callable[..., Any], Any]:
    import jax
    import jax.numpy as jnp

    takes = inspect.signature(module.__call__)
    names, settings = input_names(takes), settings_of(takes)
    tokens = {name: jnp.zeros((1, 2), jnp.int32) for name in names.values()}
    return applied(module), module.init(jax.random.key(0), **tokens, **settings)


def applied(module: Any) -> Callable[..., Any]:
    def function(variables: Any, *args: Any, **named: Any) -> Any:
        return module.apply(variables, *args, **named)

    takes = inspect.signature(module.__call__)
    first = inspect.Parameter("variables", inspect.Parameter.POSITIONAL_ONLY)
    function.__signature__ = takes.replace(parameters=[first, *takes.parameters.values()])  # type: ignore[attr-defined]
    return function


@contextlib.contextmanager
def kept(port: Any) -> Iterator[None]:
    """Restore the weights and training modes of a port's PyTorch module after the context."""
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
    undo = _undo(module, {})
    module.double()
    return undo


def _undo(module: Any, copies: Mapping[int, Any]) -> Callable[[], None]:
    """Return a function that restores a module's current tensors; `copies` maps a tensor's `id` to a copy."""
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


def tensors_of(model: Any) -> dict[str, ModuleTensor]:
    """Return the learned tensors of a module, or of nested dicts and lists, by name; an empty dict if there are none.

    Leave out buffers, such as masks and rotary tables, but keep the statistics of a batch norm. Return a tensor with
    several names only once, under the first name.
    """
    if (kind := kind_of(model)) is not None:
        return dict(kind.tensors_of(model))
    if is_instance(model, "torch.nn", "Module"):
        return dict(_of_torch(model))
    if is_instance(model, "flax.nnx", "Module"):
        return dict(_of_nnx(model))
    return {} if isinstance(model, tuple) else dict(_leaves(model))  # a tuple cannot be filled


def buffers_of(model: Any) -> dict[str, ModuleTensor]:
    """Return a PyTorch module's saved buffers and frozen parameters, such as Whisper's position table."""
    if not is_instance(model, "torch.nn", "Module"):
        return {}
    saved = model.state_dict(keep_vars=True)
    learned = tensors_of(model)
    found = {name: value for name, value in model.named_parameters() if not value.requires_grad and name not in learned}
    found |= {name: value for name, value in model.named_buffers() if name in saved and not name.endswith(STATISTICS)}
    return {name: _tensor(value) for name, value in found.items() if value.is_floating_point() and value.numel()}


def tensors_inside(function: Any) -> dict[str, ModuleTensor]:
    return next((tensors for node in contents_of(function) if (tensors := tensors_of(node))), {})


def package_of(node: Any) -> str:
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        found = package_of(value) if isinstance(value, dict | list) else type(value).__module__.partition(".")[0]
        if found:
            return found
    return ""


def _of_torch(model: Any) -> Iterator[tuple[str, ModuleTensor]]:
    every = list(model.named_parameters())
    trained = [(name, value) for name, value in every if value.requires_grad]
    if not any(value.ndim > 1 for _, value in trained):  # all weights are frozen, for inference
        trained = every
    frozen = dict(every).keys() - dict(trained).keys()
    known = set()
    for name, value in ((name, value) for name, value in learned_of(model).items() if name not in frozen):
        key = (value.data_ptr(), tuple(value.shape), value.stride())
        if value.is_floating_point() and value.numel() and key not in known:
            known.add(key)
            yield name, _tensor(value)


def _tensor(value: Any) -> ModuleTensor:
    import torch

    def write(numbers: np.ndarray) -> None:
        with torch.no_grad():
            value.copy_(torch.from_numpy(np.ascontiguousarray(numbers)).view(value.shape))

    return ModuleTensor(lambda: value.detach().to("cpu", torch.float32, copy=True).numpy(), write)


def _of_nnx(model: Any) -> Iterator[tuple[str, ModuleTensor]]:
    from flax import nnx

    for path, variable in nnx.state(model).flat_state():
        if isinstance(variable, nnx.Param | nnx.BatchStat) and variable[...].dtype.kind == "f":
            read = functools.partial(_numbers, variable, ...)
            yield ".".join(map(str, path)), ModuleTensor(read, functools.partial(_put, variable, (...,)))


def _numbers(node: Any, key: Any) -> np.ndarray:
    return np.array(node[key], np.float32)


def _leaves(root: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[str, ModuleTensor]]:
    node = functools.reduce(operator.getitem, path, root)
    if isinstance(node, dict | list | tuple):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from _leaves(root, (*path, key))
    elif path and is_instance(node, "torch", "Tensor"):
        if node.is_floating_point() and node.numel():
            yield ".".join(map(str, path)), _tensor(node)
    elif path and hasattr(node, "dtype") and np.dtype(node.dtype).kind == "f" and np.size(node):
        read = lambda: np.array(functools.reduce(operator.getitem, path, root), np.float32)
        yield ".".join(map(str, path)), ModuleTensor(read, functools.partial(_put, root, path))


def _put(node: Any, path: Sequence[Any], numbers: np.ndarray) -> Any:
    """Replace the array at a path, and return the changed node: a copy of a tuple, or the node itself."""
    if not path:
        return _like(node, numbers)
    key, *rest = path
    new = _put(node[key], rest, numbers)
    if isinstance(node, tuple):
        items = (new if number == key else item for number, item in enumerate(node))
        return type(node)(*items) if hasattr(node, "_fields") else tuple(items)
    node[key] = new
    return node


def _like(value: Any, numbers: np.ndarray) -> Any:
    if isinstance(value, np.ndarray):
        value = value if value.flags.writeable else value.copy()
        value[...] = numbers.reshape(value.shape)
        return value
    import jax.numpy as jnp

    return jnp.asarray(numbers.reshape(value.shape), value.dtype)
