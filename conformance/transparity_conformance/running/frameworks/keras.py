"""Call models and layers of Keras 3, with any of Keras's backends."""

import contextlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.capabilities.port_calls import PortError, signature_of
from transparity_conformance.running.frameworks.modules import ModuleTensor
from transparity_conformance.running.inputs import NAMES, add_mask, arguments

INPUTS = {
    "tokens": ("token_ids",),
    "source": ("source", "encoder_token_ids"),
    "target": ("target", "decoder_token_ids"),
    "attention_mask": ("padding_mask",),
    "token_types": ("segment_ids",),
}
"""Names of inputs in functional models, in addition to `NAMES`."""

OF_KERAS = ("_layers", "_operations", "_functional", "_modules")
"""Attributes that Keras and PyTorch add to a model with layers; names of variables do not contain these attributes."""


def forward_of(model: Any, config: TransformerConfig) -> Callable[..., Any]:
    functional = [each.name for each in getattr(model, "inputs", None) or ()]
    parameters = _parameters(model)
    is_one = len(parameters) == 1 and len(config.input_names) > 1

    def forward(**inputs: np.ndarray) -> Any:
        given = add_mask(inputs, config)
        with _without_gradients():
            if functional:
                return model(_tensors(_by_input(given, functional)))
            args, named = arguments(given, config, frozenset(parameters))
            return model(*_tensors([tuple(args)] if is_one else args), **_tensors(named))

    return forward


def tensors_of(model: Any) -> Iterator[tuple[str, ModuleTensor]]:
    """Yield the floating-point variables, named by the path of attributes, such as `blocks.0.attention.query.kernel`.

    If no attribute contains a layer, as in a functional model, the path contains the layer's Keras name. A number at
    the end of the Keras name becomes an index. Keras numbers default names per process; here, the numbers of each model
    start at 0.
    """
    known: set[int] = set()
    for name, variable in _variables("", model, {id(model)}):
        if id(variable) not in known and "float" in keras.backend.standardize_dtype(variable.dtype):
            known.add(id(variable))
            read = lambda variable=variable: np.array(keras.ops.convert_to_numpy(variable), np.float32)
            yield name, ModuleTensor(read, variable.assign)


def _parameters(model: Any) -> list[str]:
    signature = signature_of(model.call)
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY)
    names = [] if signature is None else [each.name for each in signature.parameters.values() if each.kind in plain]
    return [name for name in names if name not in ("training", "mask")]


def _by_input(given: Mapping[str, np.ndarray], names: list[str]) -> Any:
    """Return the inputs for a functional model: an array if the model has one input, otherwise a dict of arrays by
    name."""
    if len(names) == 1:
        return next(iter(given.values()))
    known = {theirs: ours for ours in given for theirs in (*NAMES[ours], *INPUTS[ours])}
    if unknown := [name for name in names if name not in known]:
        raise PortError(
            f"The model has an input {unknown[0]!r}; expected names among {', '.join(known)}: rename it, or "
            "return a function from build."
        )
    return {name: given[known[name]] for name in names}


def _tensors(values: Any) -> Any:
    return keras.tree.map_structure(lambda value: keras.ops.convert_to_tensor(value, "int32"), values)


def _without_gradients() -> contextlib.AbstractContextManager[Any]:
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()


def _variables(path: str, layer: Any, above: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a layer, then the variables of its sublayers. `above` contains the `id` of each enclosing
    layer, which is skipped."""
    children = {name: child for name, child in _children(layer).items() if id(child) not in above}
    inside = {id(variable) for child in children.values() for variable in child.weights}
    named = {id(value): name.lstrip("_") for name, value in vars(layer).items() if isinstance(value, keras.Variable)}
    for variable in layer.weights:
        if id(variable) not in inside:
            yield path + named.get(id(variable), variable.name), variable
    for name, child in children.items():
        yield from _variables(f"{path}{name}.", child, {*above, id(child)})


def _children(layer: Any) -> dict[str, Any]:
    """Return the layers inside a layer by the name of the attribute; a layer in no attribute gets its Keras name."""
    found: dict[str, Any] = {}
    for name, value in {**vars(layer), **vars(layer).get("_modules", {})}.items():
        if name not in OF_KERAS:
            found |= {path: child for path, child in _under(name.lstrip("_"), value) if isinstance(child, keras.Layer)}
    known = set(map(id, found.values()))
    others = [child for child in layer._flatten_layers(False, False) if id(child) not in known]
    names = list(map(_name, others))
    for number, (name, child) in enumerate(zip(names, others, strict=True)):
        found[name if names.count(name) == 1 else f"{name}.{names[:number].count(name)}"] = child
    return found


def _name(layer: Any) -> str:
    """Return a layer's name: `block.3` for block_3. For dense_3 of the class `Dense`, return `dense`, because Keras
    added the number."""
    found = re.fullmatch(r"(.+)_(\d+)", layer.name)
    if found is None:
        return str(layer.name)
    is_numbered = found[1].replace("_", "") == type(layer).__name__.lower().replace("_", "")
    return found[1] if is_numbered else f"{found[1]}.{found[2]}"


def _under(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    yield name, value
    for key, item in items:
        yield f"{name}.{key}", item
