"""The arguments of a model's forward pass (inputs, padding mask and settings), and the outputs in its result."""

import contextlib
import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port, signature_of
from transparity_conformance.storage.on_disk import OnDisk

Array = Callable[[np.ndarray], Any]
"""Converts token ids or pixels to an array of a model's framework."""

Context = Callable[[], contextlib.AbstractContextManager[Any]]

NAMES = {
    "tokens": ("input_ids", "tokens"),
    "pixels": ("pixel_values", "pixels", "img", "image", "images"),
    "source": ("input_ids", "input_features"),
    "target": ("decoder_input_ids",),
    "attention_mask": ("attention_mask",),
    "token_types": ("token_type_ids", "token_types", "segment_ids", "segment_info", "segments"),
}
"""The names that a model may give to each input of the reference."""


def add_mask(inputs: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the inputs; if the model masks padding, add the attention mask that a tokenizer would return."""
    is_masked = config.has_encoder or config.decoder_mask == "causal-and-padding"
    has_tokens = config.input_names[0] in config.token_inputs
    if "attention_mask" in inputs or config.pad_id is None or not is_masked or not has_tokens:
        return dict(inputs)
    is_token = inputs[config.input_names[0]] != config.pad_id
    return {**inputs, "attention_mask": is_token.astype(np.int64)}


def arguments(
    inputs: Mapping[str, np.ndarray], config: TransformerConfig, names: frozenset[str], first: str | None = None
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the positional and keyword arguments for calling a function whose parameters are `names`.

    Pass the main inputs by keyword if `NAMES` has the function's name of each main input. If `first` is given, it must
    be one of these names. Otherwise, pass the main inputs by position. Pass other inputs, such as a mask, only by
    keyword.
    """
    called = {ours: next((name for name in NAMES[ours] if name in names), None) for ours in inputs}
    by_name = all(called[ours] is not None for ours in config.input_names) and first in (None, *called.values())
    args = [] if by_name else [inputs[ours] for ours in config.input_names]
    given = [ours for ours in inputs if by_name or ours not in config.input_names]
    return args, {name: inputs[ours] for ours in given if (name := called[ours]) is not None}


def framework_of(model: Any) -> str:
    """Return the framework whose arrays a model takes: `torch`, `jax`, `mlx` or `numpy`.

    A PyTorch, nnx, Equinox or MLX module takes arrays of its own framework. For a function, return the framework of the
    first known object that the function uses, or that its file imports. The default is NumPy.
    """
    if is_instance(model, "torch.nn", "Module"):
        return "torch"
    if is_instance(model, "flax.nnx", "Module") or is_instance(model, "equinox", "Module"):
        return "jax"
    if is_instance(model, "mlx.nn", "Module"):
        return "mlx"
    return next((FRAMEWORKS[package] for package in _packages_of(model) if package in FRAMEWORKS), "numpy")


FRAMEWORKS = {
    "torch": "torch",
    "transformers": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "flax": "jax",
    "equinox": "jax",
    "mlx": "mlx",
    "mlx_lm": "mlx",
}
"""The framework of a model's arrays, by a package that the model's file may import."""


def is_instance(model: Any, package: str, name: str) -> bool:
    kind = getattr(sys.modules.get(package), name, None)
    return isinstance(kind, type) and isinstance(model, kind)


def _packages_of(model: Any) -> Iterator[str]:
    """Yield the packages of the objects in the closure of a function or `__call__`, then of its file's globals."""
    while isinstance(model, functools.partial):
        model = model.func
    function = getattr(inspect.unwrap(model), "__func__", inspect.unwrap(model))
    if not hasattr(function, "__globals__"):
        function = type(model).__call__
    for value in [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]:
        yield from (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    for value in getattr(function, "__globals__", {}).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        yield name.partition(".")[0] if isinstance(name, str) else ""


def arrays(model: Any, framework: str) -> tuple[Array, Context]:
    if framework == "torch":
        import torch

        weights = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
        first = next(iter(weights), torch.zeros(1))

        def tensor(value: np.ndarray) -> Any:
            if value.dtype.kind == "f":
                return torch.from_numpy(np.array(value)).to(first)
            kind = bool if value.dtype.kind == "b" else np.int64
            return torch.from_numpy(np.array(value, kind)).to(first.device)

        return tensor, torch.no_grad
    if framework in ("jax", "mlx"):
        module = importlib.import_module({"jax": "jax.numpy", "mlx": "mlx.core"}[framework])
        return lambda value: module.array(
            value if value.dtype.kind in "fb" else value.astype(np.int32)
        ), contextlib.nullcontext
    return np.array, contextlib.nullcontext


SETTINGS: dict[str, Any] = {
    "train": False,
    "training": False,
    "is_training": False,
    "deterministic": True,
    "inference": True,
    "start_pos": 0,
}
"""Values for common arguments: no training, and no previous tokens."""

TARGETS = "targets"
"""The name of the argument for targets. Models like nanoGPT return only the last position's logits if they get no
targets."""


def settings_of(takes: inspect.Signature | None) -> dict[str, Any]:
    """Return values for the required arguments that are not inputs, such as `train=False`."""
    parameters = {} if takes is None else dict(takes.parameters)
    needed = [name for name, each in parameters.items() if each.default is inspect.Parameter.empty]
    return {name: SETTINGS[name] for name in needed if name in SETTINGS}


def completed(
    model: Callable[..., Any], takes: inspect.Signature | None, array: Array, without_gradients: Context
) -> Callable[..., Any]:
    """Return a forward pass that also passes settings and, if the model needs targets, the first input as targets."""
    settings, is_target = settings_of(takes), needs_targets(model, takes, array, without_gradients)

    def forward(*args: Any, **named: Any) -> Any:
        more = {TARGETS: (*args, *named.values())[0]} if is_target else {}
        return model(*args, **named, **settings, **more)

    return forward


def needs_targets(
    model: Callable[..., Any], takes: inspect.Signature | None, array: Array, without_gradients: Context
) -> bool:
    """Return whether the model takes targets and, without targets, returns only the last position's logits."""
    if takes is None or TARGETS not in takes.parameters:
        return False
    try:
        with without_gradients():
            answer = call_port(model, array(np.zeros((1, 2), np.int64)), **settings_of(takes))
    except PortCallError:  # the checker's first call raises the same exception
        return False
    logits = answer[0] if isinstance(answer, tuple | list) else getattr(answer, "logits", answer)
    return tuple(getattr(logits, "shape", ()))[:2] == (1, 1)


def takes_of(model: Any) -> inspect.Signature | None:
    return signature_of(model.forward if is_instance(model, "torch.nn", "Module") else model)


def input_names(takes: inspect.Signature | None) -> dict[str, str]:
    """Map the reference's names of inputs to the model's names. Raises `PortError` unless the model takes token ids,
    the token ids of a source and a target, or images."""
    parameters = {} if takes is None else dict(takes.parameters)
    named = {ours: name for ours, names in NAMES.items() for name in names if name in parameters}
    further = {ours: named[ours] for ours in ("attention_mask", "token_types") if ours in named}
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    given = {*further.values(), *settings_of(takes), "self"}
    plain = [name for name, each in parameters.items() if name not in given and each.kind not in several]
    required = [name for name in plain if parameters[name].default is inspect.Parameter.empty]
    if "pixels" in named and "input_ids" in parameters:
        raise PortError(
            f"The forward pass takes images ({named['pixels']}) and token ids (input_ids); expected only one of "
            "them: check each tower separately, as `lambda: model.vision_model` and `lambda: model.text_model`."
        )
    if "pixels" in named:
        return {"pixels": named["pixels"]}
    if "target" in named:
        return {"source": plain[0], "target": named["target"]} | further
    if len(required) > 2 or not plain:
        raise PortError(
            f"The forward pass takes ({', '.join(parameters)}); expected token ids, or source and target: "
            "return a function that takes only these, such as lambda source, target: model(…)."
        )
    if len(required) == 2:
        return {"source": required[0], "target": required[1]} | further
    return {"tokens": plain[0]} | further


OUTPUTS = {
    "": ("logits", "text_embeds", "image_embeds", "pooler_output", "last_hidden_state"),
    "logits": ("logits",),
    "hidden": ("last_hidden_state", "logits"),
    "pooled": ("pooler_output", "logits"),
    "classes": ("logits", "text_embeds", "image_embeds"),
}
"""For each head, the attributes of a result that may contain the output; the first attribute that exists is used. The
row with the key "" is used if the head is unknown."""


def taps_in(returned: Any, config: TransformerConfig) -> Mapping[Any, Any]:
    """Return the activations in a forward pass's result by name, without reading their values. The result may be the
    logits, a tuple or list that starts with the logits, a dict of activations, or an object. The head in `config`
    determines which attribute of an object is used, such as `.logits` or `.last_hidden_state`."""
    for name in OUTPUTS[config.head]:
        found = getattr(returned, name, None)
        if found is not None and not callable(found):
            return {"logits": found}
    if isinstance(returned, Mapping):
        return returned if isinstance(returned, OnDisk) else dict(returned)
    if isinstance(returned, tuple | list) and returned:
        first = returned[0]
        axes = len(np.shape(first) if isinstance(first, list) else getattr(first, "shape", ()))
        if axes == (2 if config.is_pooled else 3):  # the output of the whole batch, and not of its first row
            return {"logits": first}
    return {"logits": returned}


def shapes_of(config: TransformerConfig, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return tap_shapes(config, len(next(iter(inputs.values()))), **lengths_of(config, inputs))


def arrays_in(returned: Any, name: str = "") -> dict[str, Any]:
    """Return all arrays in a model's result by name; an item of a sequence has its number as its name."""
    if hasattr(returned, "shape") and hasattr(returned, "dtype"):
        return {name: returned}
    named = returned._asdict() if hasattr(returned, "_asdict") else returned
    items = named.items() if isinstance(named, Mapping) else enumerate(named) if isinstance(named, tuple | list) else ()
    return {
        key: array for place, each in items for key, array in arrays_in(each, f"{name}.{place}".lstrip(".")).items()
    }


def answer_in(returned: Any) -> Any:
    """Return the logits or hidden states in a model's result; raise `PortError` if the result contains no array."""
    if isinstance(returned, Mapping):
        found = next((returned[name] for name in OUTPUTS[""] if returned.get(name) is not None), None)
    else:
        had = (getattr(returned, name, None) for name in OUTPUTS[""])
        found = next((each for each in had if each is not None), returned)
    found = found[0] if isinstance(found, tuple | list) and found else found
    if not hasattr(found, "shape") or not hasattr(found, "dtype"):
        raise PortError(f"The model returned {shown(returned)}; expected an array of logits.")
    return found
