"""Inputs of a model as its caller passes them: names, arrays of its framework, the mask, and further settings."""

from __future__ import annotations

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
from transparity.limits.stored import OnDisk
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.capabilities.port_calls import PortCallError, PortError, call_port, signature_of

Array = Callable[[np.ndarray], Any]

NAMES = {
    "tokens": ("input_ids", "tokens"),
    "pixels": ("pixel_values", "pixels", "img", "image", "images"),
    "source": ("input_ids", "input_features"),
    "target": ("decoder_input_ids",),
    "attention_mask": ("attention_mask",),
    "token_types": ("token_type_ids", "token_types"),
}
"""The names under which a model may take each input of the reference."""


def add_mask(inputs: Mapping[str, np.ndarray], config: TransformerConfig) -> dict[str, np.ndarray]:
    """Return the inputs and, where padding is masked by its token, the mask that a tokenizer would add."""
    is_masked = config.has_encoder or config.decoder_mask == "causal-and-padding"
    has_tokens = config.input_names[0] in config.token_inputs
    if "attention_mask" in inputs or config.pad_id is None or not is_masked or not has_tokens:
        return dict(inputs)
    is_token = inputs[config.input_names[0]] != config.pad_id
    return {**inputs, "attention_mask": is_token.astype(np.int64)}


def arguments(
    inputs: Mapping[str, np.ndarray], config: TransformerConfig, names: frozenset[str]
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """Return the arguments of a function with the parameters `names`: token ids by name or position, the others by
    name."""
    called = {ours: next((name for name in NAMES[ours] if name in names), None) for ours in inputs}
    by_name = all(called[ours] is not None for ours in config.input_names)
    args = [] if by_name else [inputs[ours] for ours in config.input_names]
    given = [ours for ours in inputs if by_name or ours not in config.input_names]
    return args, {name: inputs[ours] for ours in given if (name := called[ours]) is not None}


def framework_of(model: Any) -> str:
    """Return the framework whose arrays a model takes: `torch`, `jax`, `mlx` or `numpy`.

    A module of PyTorch, nnx, Equinox or MLX determines it. Otherwise, the objects that a function refers to, then the
    names in its file, are searched for torch (transformers), jax (flax, equinox) and mlx. The default is NumPy.
    """
    if is_instance(model, "torch.nn", "Module"):
        return "torch"
    if is_instance(model, "flax.nnx", "Module") or is_instance(model, "equinox", "Module"):
        return "jax"
    if is_instance(model, "mlx.nn", "Module"):
        return "mlx"
    found = (FRAMEWORKS[package] for package in _packages_of(model) if package in FRAMEWORKS)
    return next(found, "numpy")


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
"""The framework whose arrays a file with this package uses."""


def is_instance(model: Any, package: str, name: str) -> bool:
    """Return whether `model` is an instance of a framework's class; the framework is not imported for this."""
    kind = getattr(sys.modules.get(package), name, None)
    return isinstance(kind, type) and isinstance(model, kind)


def _packages_of(model: Any) -> Iterator[str]:
    """Yield the packages of the objects that a function (a method, or an object's class) refers to, and of its
    file's names."""
    while isinstance(model, functools.partial):
        model = model.func
    function = getattr(inspect.unwrap(model), "__func__", inspect.unwrap(model))
    if not hasattr(function, "__globals__"):
        function = type(model).__call__
    cells = getattr(function, "__closure__", None) or ()
    for value in [cell.cell_contents for cell in cells]:
        yield from (kind.__module__.partition(".")[0] for kind in type(value).__mro__)
    for value in getattr(function, "__globals__", {}).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        yield name.partition(".")[0] if isinstance(name, str) else ""


def arrays(model: Any, framework: str) -> tuple[Array, Callable[[], contextlib.AbstractContextManager[Any]]]:
    """Return the conversion of token ids or pixels for a framework, and the context of a call without gradients."""
    if framework == "torch":
        import torch

        weights = model.parameters() if isinstance(model, torch.nn.Module) else iter(())
        first = next(iter(weights), torch.zeros(1))

        def tensor(value: np.ndarray) -> Any:
            if value.dtype.kind == "f":
                return torch.from_numpy(np.array(value)).to(first)
            return torch.from_numpy(np.array(value, np.int64)).to(first.device)

        return tensor, torch.no_grad
    if framework in ("jax", "mlx"):
        module = importlib.import_module({"jax": "jax.numpy", "mlx": "mlx.core"}[framework])
        return lambda value: module.array(
            value if value.dtype.kind == "f" else value.astype(np.int32)
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
"""Arguments without a default that disable training, or mean that no tokens came before."""

TARGETS = "targets"
"""An argument of models like nanoGPT, which without it return only the logits of the last position."""


def settings_of(takes: inspect.Signature | None) -> dict[str, Any]:
    """Return the non-token arguments of a forward pass without a default, with their values."""
    parameters = {} if takes is None else dict(takes.parameters)
    needed = [name for name, each in parameters.items() if each.default is inspect.Parameter.empty]
    return {name: SETTINGS[name] for name in needed if name in SETTINGS}


def completed(
    model: Callable[..., Any],
    takes: inspect.Signature | None,
    array: Callable[[np.ndarray], Any],
    without_gradients: Callable[[], contextlib.AbstractContextManager[Any]],
) -> Callable[..., Any]:
    """Return the forward pass with its settings, and with targets if it needs them to return all positions.

    Args:
        model: the forward pass, whose first argument is token ids.
        takes: its signature.
        array: converts token ids to an array of its framework.
        without_gradients: the context of a call.
    """
    settings = settings_of(takes)

    def plain(*args: Any, **named: Any) -> Any:
        return model(*args, **named, **settings)

    def with_targets(*args: Any, **named: Any) -> Any:
        return plain(*args, **named, **{TARGETS: (*args, *named.values())[0]})

    if takes is None or TARGETS not in takes.parameters:
        return plain
    try:
        with without_gradients():
            answer = call_port(plain, array(np.zeros((1, 2), np.int64)))
    except PortCallError:  # the checker's first call raises it again
        return plain
    logits = answer[0] if isinstance(answer, tuple | list) else getattr(answer, "logits", answer)
    return with_targets if tuple(getattr(logits, "shape", ()))[:2] == (1, 1) else plain


def takes_of(model: Any) -> inspect.Signature | None:
    """Return the signature of a model's forward pass, or None."""
    return signature_of(model.forward if is_instance(model, "torch.nn", "Module") else model)


def input_names(takes: inspect.Signature | None) -> dict[str, str]:
    """Return the model's name of each input of the reference.

    Raise `PortError` if it takes neither only token ids nor the token ids of a source and a target.
    """
    parameters = {} if takes is None else dict(takes.parameters)
    named = {ours: name for ours, names in NAMES.items() for name in names if name in parameters}
    further = {ours: named[ours] for ours in ("attention_mask", "token_types") if ours in named}
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    given = {*further.values(), *settings_of(takes), "self"}
    plain = [name for name, each in parameters.items() if name not in given and each.kind not in several]
    required = [name for name in plain if parameters[name].default is inspect.Parameter.empty]
    if "pixels" in named and "input_ids" in parameters:
        raise PortError(
            f"The forward pass takes images ({named['pixels']}) and token ids (input_ids); expected one of them: give "
            "each tower by itself, as `lambda: model.vision_model` and `lambda: model.text_model`."
        )
    if "pixels" in named:
        return {"pixels": named["pixels"]}
    if "target" in named:
        return {"source": plain[0], "target": named["target"]} | further
    if len(required) > 2 or not plain:
        raise PortError(
            f"The forward pass takes ({', '.join(parameters)}); expected only token ids, or a source and a target. "
            "Return a function with these arguments: lambda source, target: model(…)."
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
"""The attributes of an output object by the model's head, empty if it is unknown; the first existing one is used."""


def taps_in(returned: Any, config: TransformerConfig) -> Mapping[Any, Any]:
    """Return the taps that a forward pass returned, by name; values are not read.

    Args:
        returned: an object with `.logits` (`.last_hidden_state`, `.pooler_output` for a model without logits), a dict
            of taps, a tuple or a list whose first item is the logits, or the logits, as an array of any framework.
        config: the model's configuration; its head determines which output of an object is used.
    """
    for name in OUTPUTS[config.head]:
        found = getattr(returned, name, None)
        if found is not None and not callable(found):
            return {"logits": found}
    if isinstance(returned, Mapping):
        return returned if isinstance(returned, OnDisk) else dict(returned)
    if isinstance(returned, tuple | list) and returned and _is_sequence_of_outputs(returned, config):
        return {"logits": returned[0]}
    return {"logits": returned}


def _is_sequence_of_outputs(returned: tuple[Any, ...] | list[Any], config: TransformerConfig) -> bool:
    """Return whether the first item is the whole answer, and not its first row."""
    axes = 2 if config.is_pooled else 3
    return len(np.shape(returned[0]) if isinstance(returned[0], list) else getattr(returned[0], "shape", ())) == axes


def shapes_of(config: TransformerConfig, inputs: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all taps of a call, by name."""
    return tap_shapes(config, len(next(iter(inputs.values()))), **lengths_of(config, inputs))


def arrays_in(returned: Any) -> list[Any]:
    """Return the arrays in a model's result: the result itself, or the items of a tuple or mapping."""
    nested = list(returned.values()) if isinstance(returned, Mapping) else returned
    if isinstance(nested, tuple | list):
        return [array for each in nested for array in arrays_in(each)]
    return [nested] if hasattr(nested, "shape") and hasattr(nested, "dtype") else []


def answer_in(returned: Any) -> Any:
    """Return the logits or hidden states in a model's result; raise `PortError` if there are none."""
    found = returned
    if isinstance(returned, Mapping):
        found = next((returned[name] for name in OUTPUTS[""] if returned.get(name) is not None), None)
    else:
        had = (getattr(returned, name, None) for name in OUTPUTS[""])
        found = next((each for each in had if each is not None), returned)
    found = found[0] if isinstance(found, tuple | list) and found else found
    if not hasattr(found, "shape") or not hasattr(found, "dtype"):
        raise PortError(f"The model returned {shown(returned)}; expected an array of logits.")
    return found
