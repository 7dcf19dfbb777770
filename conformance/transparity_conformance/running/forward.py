"""Call a model's forward pass, with arrays of the model's framework and the model's own names of inputs."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity_conformance.capabilities.port_calls import PortError, call_port, has_method, signature_of
from transparity_conformance.running.frameworks.modules import kind_of, tensors_inside
from transparity_conformance.running.inputs import (
    TARGETS,
    Array,
    Context,
    add_mask,
    answer_in,
    arguments,
    arrays,
    completed,
    framework_of,
    input_names,
    is_instance,
    needs_targets,
    settings_of,
    takes_of,
    taps_in,
)
from transparity_conformance.running.ways import COTANGENT, add_ways, is_cache


def called_by_name(model: Any, framework: str | None = None) -> tuple[Callable[..., Any], dict[str, str]]:
    """Return a forward pass that takes inputs by the reference's names; also return the model's name of each input."""
    names, own = input_names(takes_of(model)), called_by_its_names(model, framework)
    return lambda **inputs: own(**{names[ours]: value for ours, value in inputs.items()}), names


def _prepared(model: Any, framework: str | None) -> tuple[inspect.Signature | None, Array, Context]:
    """Put a model into evaluation mode. Return the model's signature, a function that makes arrays of the model's
    framework, and a context for calls."""
    if is_instance(model, "torch.nn", "Module") or is_instance(model, "flax.nnx", "Module"):
        call_port(model.eval)
    return takes_of(model), *call_port(arrays, model, framework or call_port(framework_of, model))


def called_by_its_names(model: Any, framework: str | None = None) -> Callable[..., Any]:
    """Return `forward(**inputs)`, which takes inputs by the model's own names, and has the model's signature. The first
    input may have any name. `forward` returns the array of logits or hidden states."""
    if not callable(model):
        raise PortError(f"The port returned {shown(model)}; expected a model, or a function of the model's inputs.")
    takes, array, without_gradients = _prepared(model, framework)
    further, has_targets = settings_of(takes), needs_targets(model, takes, array, without_gradients)

    def called(way: Callable[..., Any], *settings: Any, **inputs: np.ndarray) -> Any:
        own = {name: value for name, value in inputs.items() if name != COTANGENT}
        beside = {name: value for name, value in inputs.items() if name == COTANGENT}
        named = {name: array(value) for name, value in (named_for(takes, own) | beside).items()}
        targets = {TARGETS: next(iter(named.values()))} if has_targets else {}
        with without_gradients():
            return way(*settings, named | targets)

    def forward(**inputs: np.ndarray) -> Any:
        return called(lambda named: answer_in(model(**named, **further)), **inputs)

    forward.__signature__ = takes  # type: ignore[attr-defined] # the checker passes only inputs in this signature
    add_ways(forward, model, called)
    return forward


def named_for(takes: inspect.Signature | None, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rename the first input to match a signature; raise `PortError` for an input that the signature lacks."""
    parameters = {} if takes is None else dict(takes.parameters)
    if takes is None or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return dict(inputs)
    first, *others = inputs
    names = {name: name for name in others} | {first: first if first in parameters else next(iter(parameters), first)}
    if unknown := [name for name, own in names.items() if own not in parameters]:
        raise PortError(f"The port takes ({', '.join(parameters)}); expected {unknown[0]} as one of these inputs.")
    return {names[name]: value for name, value in inputs.items()}


def filled_by_name(model: Any, weights: Mapping[str, np.ndarray]) -> bool:
    """Fill a PyTorch module with `weights`, and return True; return False if a name or a shape differs."""
    if not is_instance(model, "torch.nn", "Module"):
        return False
    import torch

    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if shapes != {name: value.shape for name, value in weights.items()}:
        return False
    model.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in weights.items()})
    return True


def add_tensors(forward: Any, model: Any) -> None:
    """Add methods that read and write the model's tensors by name to a forward pass."""
    held = tensors_inside(model)

    def assign(values: Mapping[str, np.ndarray]) -> None:
        for name, value in values.items():
            held[name].write(value)

    forward.tensors, forward.assign = lambda: {name: each.read() for name, each in held.items()}, assign


def forward_of(model: Any, config: TransformerConfig) -> Callable[..., Any]:
    if not callable(model):
        raise PortError(f"load(folder) returned {shown(model)}; expected a model, or a function of token ids.")
    return called(model, config)


def called(model: Any, config: TransformerConfig, framework: str | None = None) -> Callable[..., Any]:
    """Return the forward pass `forward(**inputs)` of a model, in evaluation mode and without gradients. `framework` is
    the framework of the model's arrays; None to detect it."""
    if (kind := kind_of(model)) is not None:
        own: Callable[..., Any] = call_port(kind.forward_of, model, config)
        return own
    takes, array, without_gradients = _prepared(model, framework)
    whole = completed(model, takes, array, without_gradients)
    parameters = {} if takes is None else dict(takes.parameters)
    names = frozenset(parameters)
    plain = (each for each in parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD)
    first = next((each.name for each in plain if each.default is each.empty), None)

    def with_graph(settings: Mapping[str, bool] | None = None, /, **inputs: np.ndarray) -> Any:
        args, named = arguments(add_mask(inputs, config), config, names, first)
        if may_have_no_mask(inputs, named, config, takes):
            del named["attention_mask"]
        further = {**other_cache_setting(inputs, config, takes), **(settings or {})}
        return whole(*map(array, args), **{name: array(value) for name, value in named.items()}, **further)

    def forward(**inputs: np.ndarray) -> Any:
        with without_gradients():
            return with_graph(**inputs)

    forward.with_graph = with_graph  # type: ignore[attr-defined] # for gradients
    forward.__signature__ = takes  # type: ignore[attr-defined] # messages show the model's arguments
    forward.placements = getattr(model, "placements", {})  # type: ignore[attr-defined] # for a model on several ranks

    def resized(pixels: np.ndarray) -> Any:
        with without_gradients():
            return taps_in(with_graph({INTERPOLATES: True}, pixels=pixels), config)["logits"]

    if INTERPOLATES in names:
        forward.resized = resized  # type: ignore[attr-defined]
    _add_methods(forward, model, array, without_gradients)
    return forward


INTERPOLATES = "interpolate_pos_encoding"
"""The argument with which models of `transformers` interpolate positions, for images of another size."""


def may_have_no_mask(
    inputs: Mapping[str, np.ndarray],
    named: Mapping[str, np.ndarray],
    config: TransformerConfig,
    takes: inspect.Signature | None,
) -> bool:
    """Return whether to omit the attention mask, so that the checker also tests calls without a mask. If the mask hides
    nothing and is an optional argument, omit the mask for every third length (2, 5, 8 …)."""
    mask = named.get("attention_mask")
    if mask is None or mask.shape[1] % 3 != 2 or not mask.all():
        return False
    is_padded = any((inputs[name] == config.pad_id).any() for name in config.token_inputs)
    return takes is not None and takes.parameters["attention_mask"].default is None and not is_padded


def other_cache_setting(
    inputs: Mapping[str, np.ndarray], config: TransformerConfig, takes: inspect.Signature | None
) -> dict[str, bool]:
    """If the length is even, return the argument `use_cache` with the value that is not the model's default. Never turn
    on the cache of a model that takes no cache: the model may keep the cache of the previous call."""
    names = {} if takes is None else takes.parameters
    if "use_cache" not in names or inputs[config.input_names[-1]].shape[1] % 2:
        return {}
    default = names["use_cache"].default
    if default is False and any(map(is_cache, names)):
        return {"use_cache": True}
    return {"use_cache": False} if default in (None, True) else {}


def _add_methods(forward: Callable[..., Any], model: Any, array: Array, without_gradients: Context) -> None:
    def step(tokens: np.ndarray, cache: Any, **named: np.ndarray) -> Any:
        with without_gradients():
            return model.step(array(tokens), cache, **{name: array(value) for name, value in named.items()})

    def generate(prompt: np.ndarray, max_new_tokens: int, source: np.ndarray | None = None) -> Any:
        named = {} if source is None else {"source": array(source)}
        with without_gradients():
            return model.generate(array(prompt), max_new_tokens, **named)

    def packed(tokens: np.ndarray, documents: np.ndarray) -> Any:
        with without_gradients():
            return answer_in(model.packed(array(tokens), array(documents)))

    for name, method in (("step", step), ("generate", generate), ("packed", packed)):
        takes = signature_of(getattr(model, name)) if has_method(model, name) else None
        # The first two arguments distinguish the method from others, such as the `generate` of transformers.
        if takes is not None and list(takes.parameters)[:2] == list(inspect.signature(method).parameters)[:2]:
            setattr(forward, name, method)
            if name == "step":
                step.__signature__ = takes  # type: ignore[attr-defined] # `step` may take a mask


def required_arguments(signature: inspect.Signature | None) -> int | None:
    if signature is None or any(each.kind is each.VAR_POSITIONAL for each in signature.parameters.values()):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is each.empty for each in signature.parameters.values())
