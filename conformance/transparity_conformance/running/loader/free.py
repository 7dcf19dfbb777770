"""A model of which no configuration is known: the inputs that its forward pass takes, and a call by their names."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from transparity.errors import shown
from transparity_conformance.capabilities.stranger import PortError, call_stranger, signature_of
from transparity_conformance.running.loader.inputs import NAMES, arrays, framework_of, is_instance
from transparity_conformance.running.loader.settings import completed, settings_of

OUTPUTS = ("logits", "text_embeds", "image_embeds", "pooler_output", "last_hidden_state")
"""The attributes or keys of an answer, the first that it has counts: those of the head that the model has."""


def takes_of(model: Any) -> inspect.Signature | None:
    """The signature of a model's forward pass; None if it has none."""
    return signature_of(model.forward if is_instance(model, "torch.nn", "Module") else model)


def input_names(takes: inspect.Signature | None) -> dict[str, str]:
    """The model's own name of each input of ours.

    Raises `PortError` if it takes neither token ids alone nor those of a source and a target.
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
            f"The forward pass takes ({', '.join(parameters)}); expected token ids alone, or those of a source and a "
            "target: return a function that takes these, lambda source, target: model(…)."
        )
    if len(required) == 2:
        return {"source": required[0], "target": required[1]} | further
    return {"tokens": plain[0]} | further


def called_by_name(model: Any, framework: str | None = None) -> tuple[Callable[..., Any], dict[str, str]]:
    """The forward pass of a model with our names of its inputs, and its own names of these.

    Its answer is the array of logits, or of hidden states.
    """
    takes = takes_of(model)
    names = input_names(takes)
    array, without_gradients = call_stranger(arrays, model, framework or call_stranger(framework_of, model))
    whole = completed(model, takes, array, without_gradients)

    def forward(**inputs: np.ndarray) -> Any:
        with without_gradients():
            return answer_in(whole(**{names[ours]: array(value) for ours, value in inputs.items()}))

    return forward, names


def answer_in(returned: Any) -> Any:
    """The logits, or hidden states, in what a model returned; raises `PortError` if there are none."""
    found = returned
    if isinstance(returned, Mapping):
        found = next((returned[name] for name in OUTPUTS if returned.get(name) is not None), None)
    else:
        had = (getattr(returned, name, None) for name in OUTPUTS)
        found = next((each for each in had if each is not None), returned)
    found = found[0] if isinstance(found, tuple | list) and found else found
    if not hasattr(found, "shape") or not hasattr(found, "dtype"):
        raise PortError(f"The model returned {shown(returned)}; expected an array of logits.")
    return found
