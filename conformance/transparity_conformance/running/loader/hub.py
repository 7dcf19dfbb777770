"""A port's own loader, `load(folder)`, in the form `build(config, parameters)`.

A folder as a hub keeps it (config.json, model.safetensors) is written for every model that is checked, the loader reads
it, and the model is called with token ids in the arrays of its own framework. Nothing in the port is adapted.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import TransparityError, shown
from transparity_conformance.capabilities.stranger import (
    PortCallError,
    PortError,
    call_stranger,
    has_method,
    signature_of,
)
from transparity_conformance.checkpoints.editing import Edit, edit_folder
from transparity_conformance.checkpoints.exporting import export_checkpoint
from transparity_conformance.running.loader.free import takes_of
from transparity_conformance.running.loader.gradients import with_gradients
from transparity_conformance.running.loader.inputs import Array, arguments, arrays, framework_of, is_instance, with_mask
from transparity_conformance.running.loader.modules.kind import kind_of
from transparity_conformance.running.loader.settings import completed
from transparity_conformance.running.loader.spoken import seeded, spoken


class HubBuild:
    """`build(config, parameters)` for a port's `load(folder)`; it takes what else `load` takes, by name.

    Parameters may be the folder that has them, which is loaded as it is.

    Args:
        load: reads a folder with config.json and model.safetensors, and returns a model.
        model_type: the family of the folders that are written.
        root: the folder that they are written into; each is removed with its model, and `root` by the caller.
        edit: a change of every folder before it is loaded.
    """

    def __init__(self, load: Callable[..., Any], model_type: str, root: str, edit: Edit | None = None) -> None:
        functools.update_wrapper(self, load)
        self.load, self.model_type, self.root, self.edit = load, model_type, root, edit

    def edited(self, edit: Edit) -> HubBuild:
        """The same loader of folders with a change."""
        return HubBuild(self.load, self.model_type, self.root, edit)

    def __call__(
        self, config: TransformerConfig, parameters: Mapping[str, np.ndarray] | str, **options: Any
    ) -> Callable[..., Any]:
        if isinstance(parameters, str):
            return self._loaded_from(Path(parameters), config, options)
        folder = Path(tempfile.mkdtemp(dir=self.root))
        try:
            export_checkpoint(self.model_type, config, parameters, folder)
        except TransparityError as error:
            raise PortError(f"No folder can be written for load(folder): {error}") from None
        forward = self._loaded_from(folder, config, options)
        weakref.finalize(forward, shutil.rmtree, folder, ignore_errors=True)  # weights may be memory-mapped until then
        return forward

    def _loaded_from(self, folder: Path, config: TransformerConfig, options: Mapping[str, Any]) -> Callable[..., Any]:
        try:
            return self._loaded(folder, config, options)
        except PortCallError as error:
            raise PortError(f"load(folder) raised {error}.") from error.__cause__

    def _loaded(self, folder: Path, config: TransformerConfig, options: Mapping[str, Any]) -> Callable[..., Any]:
        if self.edit is None:
            model = call_stranger(self.load, str(folder), **options)
            return with_gradients(forward_of(model, config), model, folder, config, called)
        edit_folder(folder, self.edit)
        with seeded(self.edit.seed), spoken() as said:
            forward = forward_of(call_stranger(self.load, str(folder), **options), config)
        if self.edit.without is not None and (line := said.line_about(self.edit.without)):
            raise PortError(f"load(folder) says: {line}.")
        return forward


@contextlib.contextmanager
def loaded_here(load: Callable[..., Any], model_type: str) -> Iterator[HubBuild]:
    """Yield a `HubBuild` in this process, with a temporary folder that is removed with the context."""
    with tempfile.TemporaryDirectory(prefix="transparity-") as root:
        yield HubBuild(load, model_type, root)


def required_arguments(signature: inspect.Signature | None) -> int | None:
    """The number of arguments that a function needs by position: 1 for a loader, 2 for a `build`; None if unknown."""
    if signature is None or any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is each.empty for each in signature.parameters.values())


def forward_of(model: Any, config: TransformerConfig) -> Callable[..., Any]:
    """The forward pass of what `load(folder)` returned."""
    if not callable(model):
        raise PortError(f"load(folder) returned {shown(model)}; expected a model, or a function of token ids.")
    return called(model, config)


def called(model: Any, config: TransformerConfig, framework: str | None = None) -> Callable[..., Any]:
    """The forward pass `forward(**inputs)` of a model, in evaluation mode and without gradients.

    Args:
        model: a module, or a function of token ids.
        config: the configuration, which names the inputs.
        framework: the framework of its arrays; None: it is told by the model.
    """
    if (kind := kind_of(model)) is not None:
        own: Callable[..., Any] = call_stranger(kind.forward_of, model, config)
        return own
    is_torch = is_instance(model, "torch.nn", "Module")
    if is_torch or is_instance(model, "flax.nnx", "Module"):
        call_stranger(model.eval)
    array, without_gradients = call_stranger(arrays, model, framework or call_stranger(framework_of, model))
    takes = takes_of(model)
    names = frozenset() if takes is None else frozenset(takes.parameters)
    whole = completed(model, takes, array, without_gradients)

    def with_graph(**inputs: np.ndarray) -> Any:
        args, named = arguments(with_mask(inputs, config), config, names)
        return whole(*map(array, args), **{name: array(value) for name, value in named.items()})

    def forward(**inputs: np.ndarray) -> Any:
        with without_gradients():
            return with_graph(**inputs)

    forward.with_graph = with_graph  # type: ignore[attr-defined] # its answer can be differentiated
    forward.__signature__ = takes  # type: ignore[attr-defined] # messages show what the model takes
    forward.placements = getattr(model, "placements", {})  # type: ignore[attr-defined] # of one on several ranks

    _add_methods(forward, model, array, without_gradients)
    return forward


def _add_methods(
    forward: Callable[..., Any],
    model: Any,
    array: Array,
    without_gradients: Callable[[], contextlib.AbstractContextManager[Any]],
) -> None:
    """Add the methods of a port that a model offers, called with the arrays of its framework."""

    def step(tokens: np.ndarray, cache: Any, **named: np.ndarray) -> Any:
        with without_gradients():
            return model.step(array(tokens), cache, **{name: array(value) for name, value in named.items()})

    def generate(prompt: np.ndarray, max_new_tokens: int, source: np.ndarray | None = None) -> Any:
        named = {} if source is None else {"source": array(source)}
        with without_gradients():
            return model.generate(array(prompt), max_new_tokens, **named)

    for method in (step, generate):
        if _offers(model, method):
            setattr(forward, method.__name__, method)


def _offers(model: Any, method: Callable[..., Any]) -> bool:
    """Return whether a model has this method of a port, told by the names of its first two arguments; another one of
    its name is the model's own, as `generate` of transformers is."""
    name = method.__name__
    takes = signature_of(getattr(model, name)) if has_method(model, name) else None
    return takes is not None and list(takes.parameters)[:2] == list(inspect.signature(method).parameters)[:2]
