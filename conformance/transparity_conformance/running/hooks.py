"""Recording the calls of a model's modules, in PyTorch and in Flax, without changing the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from transparity.errors import TransparityError, shown
from transparity_conformance.running.loader.inputs import is_instance

Recorder = Callable[[str, Literal["input", "output"], Any], None]
"""Called with a module's name and its first argument, before it runs, or its output."""


@dataclass(frozen=True)
class Hooks:
    """The operations on a framework's modules that recording needs."""

    modules: Callable[[Any], dict[str, Any]]
    """The modules of a model by name, the model itself under the empty one."""
    hooked: Callable[[Mapping[str, Any], Recorder], AbstractContextManager[None]]
    """Within the context, calls of the named modules are recorded."""
    snapshot: Callable[[Any], Any]
    """A value as it is now, even if the model writes into it later."""


def hooks_of(model: Any) -> Hooks:
    """The operations for the framework of `model`; raises `TransparityError` if it is no module."""
    if is_instance(model, "torch.nn", "Module"):
        return Hooks(_torch_modules, _torch_hooked, _torch_snapshot)
    if is_instance(model, "flax.nnx", "Module"):
        return Hooks(_nnx_modules, _nnx_hooked, _jax_snapshot)
    raise TransparityError(f"The model is {shown(model)}; expected a torch.nn.Module or a flax.nnx.Module.")


def _torch_modules(model: Any) -> dict[str, Any]:
    return dict(model.named_modules(remove_duplicate=False))


@contextmanager
def _torch_hooked(modules: Mapping[str, Any], record: Recorder) -> Iterator[None]:
    with ExitStack() as hooks:
        for name, module in modules.items():
            # the input is recorded before the module runs, for the module may write into it
            before, after = _hooks(name, record)
            hooks.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            hooks.callback(module.register_forward_hook(after).remove)
        yield


def _hooks(name: str, record: Recorder) -> tuple[Callable[..., None], Callable[..., None]]:
    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        record(name, "input", _first(args, kwargs))

    def after(module: Any, args: tuple[Any, ...], output: Any) -> None:
        record(name, "output", output)

    return before, after


def _torch_snapshot(value: Any) -> Any:
    return value.detach().clone() if hasattr(value, "detach") else value


def _nnx_modules(model: Any) -> dict[str, Any]:
    from flax import nnx

    return {".".join(map(str, path)): module for path, module in nnx.iter_modules(model)}


@contextmanager
def _nnx_hooked(modules: Mapping[str, Any], record: Recorder) -> Iterator[None]:
    names: dict[int, list[str]] = {}
    for name, module in modules.items():
        names.setdefault(id(module), []).append(name)
    # Python looks `__call__` up in the class, so the class is patched, and records these instances only
    classes = {type(module): type(module).__call__ for module in modules.values()}
    with ExitStack() as restored:
        for kind, call in classes.items():
            restored.callback(_restore(kind))
            kind.__call__ = _recorded_call(kind, call, names, record)
        yield


def _recorded_call(
    kind: type, call: Callable[..., Any], names: Mapping[int, list[str]], record: Recorder
) -> Callable[..., Any]:
    def recorded_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # a subclass that calls its parent's __call__ is one call, recorded in its own class
        called = names.get(id(self), []) if type(self) is kind else []
        for name in called:
            record(name, "input", _first(args, kwargs))
        output = call(self, *args, **kwargs)
        for name in called:
            record(name, "output", output)
        return output

    return recorded_call


def _restore(kind: Any) -> Callable[[], None]:
    """A function that gives the class its own `__call__` back, or none if it inherits it."""
    if "__call__" not in vars(kind):
        return lambda: delattr(kind, "__call__")
    own = vars(kind)["__call__"]
    return lambda: setattr(kind, "__call__", own)


def _jax_snapshot(value: Any) -> Any:
    import jax

    if isinstance(value, jax.core.Tracer):
        raise TransparityError("The model ran while JAX was tracing it; to be recorded it has to run without jit.")
    return value


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return next(iter((*args, *kwargs.values())), None)
