"""Record a forward and a backward pass in PyTorch: the result of each function, and the gradient of this result."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity_conformance.listening.operation import Operation, Source, Sources
from transparity_conformance.listening.pytorch import tensors_in


@dataclass(eq=False)
class Backward:
    """The recorded parameters and functions of a forward pass. The three lists have the same order."""

    operations: list[Operation] = field(default_factory=list)
    gradients: list[np.ndarray | None] = field(default_factory=list)
    """The gradient of each operation's value, if the backward pass computed one."""
    passes: list[bool] = field(default_factory=list)
    """Whether each operation's value requires a gradient."""

    @property
    def computes_gradients(self) -> bool:
        """Return whether a computed value requires a gradient, which no value does under `torch.no_grad`."""
        return any(each.inputs and passes for each, passes in zip(self.operations, self.passes, strict=True))


def _copied(tensor: Any) -> np.ndarray:
    import torch

    return tensor.detach().to("cpu", torch.float64, copy=True).numpy()


def listen_backward(
    call: Callable[[], Any], parameters: Mapping[str, Any], differentiate: Callable[[Any], Any]
) -> Backward:
    """Record a forward pass (`call`) and a backward pass (`differentiate`, which returns the gradient of each parameter
    or None). The record starts with the nonempty `parameters`."""
    import torch

    recorder = _Recorder()
    for name, parameter in parameters.items():
        if parameter.numel():
            recorder.add(name, parameter, (), ())
    with torch.enable_grad():
        with recorder.recording():
            result = call()
        gradients = differentiate(result)
    pairs = zip(parameters.values(), gradients, strict=True)
    for index, gradient in enumerate(gradient for parameter, gradient in pairs if parameter.numel()):
        recorder.found.gradients[index] = None if gradient is None else _copied(gradient)
    return recorder.found


class _Recorder:
    """Records PyTorch functions. All tensors stay alive, so that Python does not reuse their ids."""

    def __init__(self) -> None:
        self.found, self.sources = Backward(), Sources()
        self.indices: dict[int, int] = {}
        self.kept: list[Any] = []

    def add(self, name: str, tensor: Any, inputs: Sequence[int], stack: tuple[Source, ...]) -> None:
        index, found = len(self.found.operations), self.found
        self.indices[id(tensor)] = index
        self.kept.append(tensor)
        found.operations.append(Operation(name, _copied(tensor), tuple(sorted(set(inputs))), stack))
        found.gradients.append(None)
        found.passes.append(tensor.requires_grad)
        if tensor.requires_grad and not tensor.is_leaf:

            def store(gradient: Any) -> None:
                found.gradients[index] = None if gradient is None else _copied(gradient)

            tensor.register_hook(store)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        from torch.overrides import TorchFunctionMode

        recorder = self

        class Mode(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                recorder.add_results(func, (args, kwargs or {}), result)
                return result

        with Mode():
            yield

    def add_results(self, func: Any, given: Any, result: Any) -> None:
        made = [each for each in tensors_in(result) if each.is_floating_point() and each.numel()]
        if not made:
            return
        inputs = [self.indices[id(each)] for each in tensors_in(given) if id(each) in self.indices]
        stack = self.sources.here()
        name = str(getattr(func, "__name__", func))
        if name == "__get__":  # the getter of a tensor's attribute, such as `data`
            name = str(getattr(getattr(func, "__self__", None), "__name__", name))
        for each in made:
            self.add(name, each, inputs, stack)
