"""Build a port's model, read and write its tensors, and call it."""

import dataclasses
import functools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.inputs import input_form
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port, signature_of
from transparity_conformance.report.formatting import count as counted
from transparity_conformance.running.adapters.adapter import Adapter
from transparity_conformance.running.forward import called, called_by_name, required_arguments
from transparity_conformance.running.frameworks import modules
from transparity_conformance.running.frameworks.modules import ModuleTensor
from transparity_conformance.running.inputs import FRAMEWORKS, is_instance

Make = Callable[..., Any]
"""A class or function that builds a model. The class or function takes nothing, or a configuration, or a configuration
and parameters."""


@dataclass(eq=False)
class Model:
    """A model with readable and writable tensors; calling it runs a forward pass."""

    forward: Callable[..., Any]
    _tensors: Mapping[str, ModuleTensor]
    _buffers: Mapping[str, ModuleTensor] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    """The model's own name of each input; empty if the model was built with a configuration."""
    module: Any = None
    """The PyTorch module that computes the forward pass; None for other models."""
    memory: Any = None
    """The object that contains the tensors: a module, or nested dicts and lists; None if it is unknown."""
    _narrow: Callable[[], None] | None = None
    _kept: dict[str, np.ndarray] | None = None

    def own(self) -> None:
        """Make this model the owner of `memory`, which several models may share. First save the previous owner's
        tensors, so that the previous owner can still be called."""
        if self.memory is None:
            return
        before = _OWNERS.get(id(self.memory))
        if before is not None and before is not self and before._kept is None:
            before._kept = {**before.tensors(), **before.buffers()}
        _OWNERS[id(self.memory)] = self

    def __call__(self, **tokens: np.ndarray) -> Any:
        if self._kept is not None:
            self.own()
            self.assign(self._kept)
            self._kept = None
        return self.forward(**tokens)

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: tensor.read() for name, tensor in self._tensors.items()}

    def buffers(self) -> dict[str, np.ndarray]:
        """Return the buffers by name. The reference has some buffers, such as unlearned biases, as parameters."""
        return {name: tensor.read() for name, tensor in self._buffers.items()}

    def assign(self, values: Mapping[str, np.ndarray]) -> None:
        every = {**self._buffers, **self._tensors}
        for name, value in values.items():
            every[name].write(value)

    def inputs(self) -> dict[str, str]:
        return dict(self.names)

    def widen(self) -> bool:
        if self.module is not None:
            self._narrow = modules.widened(self.module)
            self._tensors = modules.tensors_of(self.module)
        return self.module is not None

    def narrow(self) -> None:
        if self._narrow is not None:
            self._narrow()
            self._tensors = modules.tensors_of(self.module)


_OWNERS: weakref.WeakValueDictionary[int, Model] = weakref.WeakValueDictionary()
"""By the `id` of an object, the model whose weights the object's tensors currently contain."""


def made_by(make: Make, config: TransformerConfig | None, parameters: Mapping[str, np.ndarray] | None = None) -> Model:
    """Build a port's model, or open a module; raise `PortError` if building fails or the model has no tensors. Pass the
    configuration if the port takes an argument, and the parameters to a `build(config, parameters)`."""
    if modules.is_module(make):
        return _opened(make, config)
    count = required_arguments(signature_of(make))
    name = getattr(make, "__name__", "Model")
    write = f"write a function that returns the model, def model({'' if config is None else 'config'}): return Model(…)"
    is_build = count == 2 and parameters is not None and config is not None
    if count not in ((0, None) if config is None else (0, 1, None)) and not is_build:
        expected = "none" if config is None else "none, or the configuration"
        raise PortError(f"{name} takes {counted(count or 0, 'argument')}; expected {expected}: {write}.")
    given = (config, parameters) if is_build else () if count == 0 or config is None else (config,)
    try:
        made = call_port(make, *given)
        if is_build and config is not None:
            return _checked(Model(modules.of_build(made, config), modules.tensors_inside(made)), name, made)
        return _checked(call_port(_opened, made, config), name, made)
    except PortCallError as error:
        what = "transparity's configuration" if given else "nothing"
        hint = "" if isinstance(error.__cause__, ImportError) else f"; if it needs other arguments, {write}"
        raise PortError(f"{name} was given {what}, and raised {error}{hint}.") from error.__cause__


def _checked(model: Model, name: str, made: Any) -> Model:
    if not model.tensors():
        raise PortError(
            f"{name} returned {shown(made)}, which contains no tensor; expected a torch, flax, Equinox or Keras "
            "module, a function that calls one, or a pair (function, parameters)."
        )
    return model


def _opened(made: Any, config: TransformerConfig | None) -> Model:
    if is_instance(made, "flax.linen", "Module"):
        made = modules.initialised(made)
    if isinstance(made, tuple) and len(made) == 2 and callable(made[0]):
        function, parts = made
        framework = FRAMEWORKS.get(modules.package_of(parts), "numpy")
        model = _called(functools.partial(function, parts), config, framework, modules.tensors_of(parts))
        return dataclasses.replace(model, memory=parts)
    if config is not None and modules.kind_of(made) is not None:
        forward = called(made, config)
        # a Keras layer creates its variables at the first call
        forward(**_blank(config))
        return Model(forward, modules.tensors_of(made))
    if not callable(made):
        return Model(made, {})
    module = modules.module_in(made)
    if module is not None:
        module.eval()
    tensors = modules.tensors_inside(made) if module is None else modules.tensors_of(module)
    model = _called(made, config, None if module is None else "torch", tensors)
    return dataclasses.replace(
        model, _buffers=modules.buffers_of(module), module=module, memory=made if module is None else module
    )


def _blank(config: TransformerConfig) -> dict[str, np.ndarray]:
    forms = {name: input_form(config, name) for name in config.input_names}
    return {
        name: np.zeros((1, *(size or 2 for size in form.axes)), np.float32 if form.is_float else np.int64)
        for name, form in forms.items()
    }


def _called(
    made: Any, config: TransformerConfig | None, framework: str | None, tensors: Mapping[str, ModuleTensor]
) -> Model:
    if not tensors or config is not None:
        return Model(called(made, config, framework) if config is not None else made, tensors)
    forward, names = called_by_name(made, framework)
    return Model(forward, tensors, names=names)


def adapted(make: Make, adapter: Adapter) -> Callable[..., Model]:
    """Return `build(config, parameters)`, which builds a port's model and fills its tensors according to the
    adapter."""

    @functools.wraps(make, updated=())
    def build(config: TransformerConfig, parameters: Mapping[str, np.ndarray]) -> Model:
        model = made_by(make, config)
        model.own()
        buffers = {name: value for name, value in model.buffers().items() if adapter.names(name)}
        model.assign(adapter.tensors(config, parameters, {**model.tensors(), **buffers}))
        return model

    del build.__wrapped__
    return build
