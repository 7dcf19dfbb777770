"""The answer of a forward pass, in any of the forms that models return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.errors import shown
from transparity.limits.stored import OnDisk
from transparity.taps import lengths_of, tap_shapes
from transparity_conformance.capabilities.stranger import PortError

OUTPUTS = {
    "": ("logits", "text_embeds", "image_embeds", "pooler_output", "last_hidden_state"),
    "logits": ("logits",),
    "hidden": ("last_hidden_state", "logits"),
    "pooled": ("pooler_output", "logits"),
    "classes": ("logits", "text_embeds", "image_embeds"),
}
"""The attributes of an output object by the head of the model, empty if it is unknown; the first that it has counts."""


def taps_in(returned: Any, config: TransformerConfig) -> Mapping[Any, Any]:
    """The taps that a forward pass returned, by name; values are not read.

    Args:
        returned: an object with `.logits` (`.last_hidden_state`, `.pooler_output` for a model without logits), a dict
            of taps, a tuple or a list whose first item is the logits, or the logits, as an array of any framework.
        config: the model's; its head decides which output of an object counts.
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
    """The shapes of all taps of a call, by name."""
    return tap_shapes(config, len(next(iter(inputs.values()))), **lengths_of(config, inputs))


def answer_in(returned: Any) -> Any:
    """The logits, or hidden states, in what a model returned; raises `PortError` if there are none."""
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
