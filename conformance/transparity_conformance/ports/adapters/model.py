"""A port's model: made, its tensors read and set, and called with token ids."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.capabilities.stranger import PortCallError, PortError, call_stranger, signature_of
from transparity_conformance.ports.adapters.adapter import Adapter
from transparity_conformance.ports.adapters.tensors import buffers_of, held_by, package_of, tensors_of
from transparity_conformance.ports.loader.hub import called, required_arguments
from transparity_conformance.ports.loader.inputs import FRAMEWORKS
from transparity_conformance.ports.loader.modules.kind import Tensor, kind_of, of_build

Make = Callable[..., Any]
"""`Model()` or `Model(config)`, a class of modules or a function that makes one; or a `build(config, parameters)`."""


class Model:
    """A model and its tensors; a call is a forward pass."""

    def __init__(
        self, forward: Callable[..., Any], tensors: Mapping[str, Tensor], buffers: Mapping[str, Tensor]
    ) -> None:
        self._forward, self._tensors, self._buffers = forward, tensors, buffers

    def __call__(self, **tokens: np.ndarray) -> Any:
        return self._forward(**tokens)

    def tensors(self) -> dict[str, np.ndarray]:
        """The tensors by name, as they are."""
        return {name: tensor.read() for name, tensor in self._tensors.items()}

    def buffers(self) -> dict[str, np.ndarray]:
        """The buffers by name, of which one may be a parameter of ours, as a bias that is not learned."""
        return {name: tensor.read() for name, tensor in self._buffers.items()}

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        """Write into tensors or buffers."""
        every = {**self._buffers, **self._tensors}
        for name, value in values.items():
            every[name].write(value)


def made_by(make: Make, config: TransformerConfig, parameters: Mapping[str, np.ndarray] | None = None) -> Model:
    """Make the model; raises `PortError` with the reason if it cannot be made or has no tensors.

    Args:
        make: the port.
        config: the configuration, for a port that takes one.
        parameters: what a `build(config, parameters)` is given; None: the port may be none.
    """
    count = required_arguments(signature_of(make))
    name = getattr(make, "__name__", "Model")
    is_build = count == 2 and parameters is not None
    if count not in (0, 1, None) and not is_build:
        raise PortError(
            f"{name} takes {count} arguments; expected none, or one, the configuration: write a function that makes "
            "the model, def model(config): return Model(…)."
        )
    given = (config, parameters) if is_build else () if count == 0 else (config,)
    try:
        made = call_stranger(make, *given)
        forward, tensors = call_stranger(_built if is_build else _opened, made, config)
    except PortCallError as error:
        what = "transparity's configuration" if given else "nothing"
        raise PortError(
            f"{name} was given {what}, and raised {error}; if it needs sizes in another form, write a function that "
            "makes the model, def model(config): return Model(…)."
        ) from error.__cause__
    if not tensors:
        raise PortError(
            f"{name} made {shown(made)}, in which no tensor was found; expected a module of torch.nn, "
            "flax.nnx, Equinox or Keras, or a pair (function, parameters) whose function takes the parameters first."
        )
    return Model(forward, tensors, {} if is_build else buffers_of(made))


def _opened(made: Any, config: TransformerConfig) -> tuple[Callable[..., Any], dict[str, Tensor]]:
    """The forward pass of a model, or of a pair (function, parameters), and its tensors."""
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        function, parts = made
        framework = FRAMEWORKS.get(package_of(parts), "numpy")
        return called(functools.partial(function, parts), config, framework), tensors_of(parts)
    forward = called(made, config)
    if kind_of(made) is not None:  # a layer of Keras makes its variables when it is called first
        forward(**{name: np.zeros((1, 2), np.int64) for name in config.input_names})
    return forward, tensors_of(made)


def _built(made: Any, config: TransformerConfig) -> tuple[Callable[..., Any], dict[str, Tensor]]:
    """A `forward(**tokens)`, and the tensors that it holds."""
    return of_build(made, config), held_by(made)


def opened(make: Make) -> Callable[..., Model]:
    """`build(config, parameters)` of a port that keeps its own weights, or loads them by itself."""

    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Model:
        return made_by(make, config, parameters)

    return build


def adapted(make: Make, adapter: Adapter) -> Callable[..., Model]:
    """`build(config, parameters)` of a port whose tensors an adapter matches with our parameters."""

    @functools.wraps(make, updated=())
    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Model:
        model = made_by(make, config)
        buffers = {name: value for name, value in model.buffers().items() if adapter.names(name)}
        model.assign(adapter.tensors(config, parameters, {**model.tensors(), **buffers}))
        return model

    del build.__wrapped__
    return build
