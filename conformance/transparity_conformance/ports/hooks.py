"""How the calls of a model's parts are heard, in PyTorch and in Flax: the model itself is not written anew."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from transparity.errors import TransparityError, shown

Hear = Callable[[str, Literal["input", "output"], Any], None]
"""Is told the module's name, and what it was given first or what it returned."""


@dataclass(frozen=True)
class Framework:
    """What has to be known of a framework to listen to its modules."""

    modules: Callable[[Any], dict[str, Any]]
    """The parts of a model by name, the model itself under the empty one."""
    listening: Callable[[Mapping[str, Any], Hear], AbstractContextManager[None]]
    kept: Callable[[Any], Any]
    """A value as it is now, whatever the model does to it later."""
    tokens: Callable[[Any, np.ndarray], Any]
    """Tokens as the model takes them."""
    running: Callable[[], AbstractContextManager[Any]]
    """Entered while a model runs for nothing but its values."""


def framework_of(model: Any) -> Framework:
    """Raises `TransparityError` for what is no module; a framework that nobody has imported has made none."""
    torch, nnx = sys.modules.get("torch"), sys.modules.get("flax.nnx")
    if torch and isinstance(model, torch.nn.Module):
        return Framework(_torch_modules, _listening_to_torch, _kept_by_torch, _torch_tokens, torch.no_grad)
    if nnx and isinstance(model, nnx.Module):
        return Framework(_nnx_modules, _listening_to_nnx, _kept_by_jax, _jax_tokens, nullcontext)
    raise TransparityError(f"The model is {shown(model)}; expected a torch.nn.Module or a flax.nnx.Module.")


def _torch_modules(model: Any) -> dict[str, Any]:
    return dict(model.named_modules(remove_duplicate=False))


@contextmanager
def _listening_to_torch(modules: Mapping[str, Any], hear: Hear) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, module in modules.items():
            # the input is heard before the module runs, for the module may write into it
            for hook in (
                module.register_forward_pre_hook(_hears_input(name, hear), with_kwargs=True),
                module.register_forward_hook(_hears_output(name, hear)),
            ):
                hooks.callback(hook.remove)
        yield


def _hears_input(name: str, hear: Hear) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hear(name, "input", _first(args, kwargs))

    return hook


def _hears_output(name: str, hear: Hear) -> Callable[..., None]:
    def hook(module: Any, args: tuple[Any, ...], output: Any) -> None:
        hear(name, "output", output)

    return hook


def _kept_by_torch(value: Any) -> Any:
    return value.detach().clone() if hasattr(value, "detach") else value


def _torch_tokens(model: Any, tokens: np.ndarray) -> Any:
    import torch

    weight = next(model.parameters(), None)
    return torch.as_tensor(np.asarray(tokens), device=None if weight is None else weight.device)


def _nnx_modules(model: Any) -> dict[str, Any]:
    from flax import nnx

    return {".".join(map(str, path)): module for path, module in nnx.iter_modules(model)}


@contextmanager
def _listening_to_nnx(modules: Mapping[str, Any], hear: Hear) -> Iterator[None]:
    names: dict[int, list[str]] = {}
    for name, module in modules.items():
        names.setdefault(id(module), []).append(name)
    # Python looks `__call__` up in the class, so it is the class that listens, and only to these instances
    classes = {type(module): type(module).__call__ for module in modules.values()}
    with ExitStack() as restored:
        for kind, call in classes.items():
            restored.callback(_put_back(kind))
            kind.__call__ = _heard(kind, call, names, hear)
        yield


def _heard(kind: type, call: Callable[..., Any], names: Mapping[int, list[str]], hear: Hear) -> Callable[..., Any]:
    def heard(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a subclass that calls its parent's __call__ is one call, heard in the class of its own
        called = names.get(id(self), []) if type(self) is kind else []
        for name in called:
            hear(name, "input", _first(args, kwargs))
        output = call(self, *args, **kwargs)
        for name in called:
            hear(name, "output", output)
        return output

    return heard


def _put_back(kind: Any) -> Callable[[], None]:
    if "__call__" not in vars(kind):
        return lambda: delattr(kind, "__call__")
    own = vars(kind)["__call__"]
    return lambda: setattr(kind, "__call__", own)


def _kept_by_jax(value: Any) -> Any:
    import jax

    if isinstance(value, jax.core.Tracer):
        raise TransparityError("The model ran while JAX was tracing it; to be recorded it has to run without jit.")
    return value


def _jax_tokens(model: Any, tokens: np.ndarray) -> Any:
    import jax.numpy as jnp

    return jnp.asarray(tokens)


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return next(iter((*args, *kwargs.values())), None)
