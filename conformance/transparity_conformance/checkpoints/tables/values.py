"""Checks and conversions of the values in config.json."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity.errors import is_number, is_whole
from transparity_conformance.checkpoints.reading import CheckpointError, as_json

Fields = Mapping[str, Any]
"""Fields by name, of config.json or of `TransformerConfig`."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu-tanh",
    "quick_gelu": "gelu-quick",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}

MOST_LAYERS = 10_000
"""The largest supported number of layers, because the kind of every layer is stored."""


def wrong(name: str, found: Any, expected: str) -> CheckpointError:
    """Return the error for a value that is not supported."""
    return CheckpointError(f"{name} is {as_json(found)}; expected {expected}: other values cannot be imported.")


def as_one_of(fields: Fields, name: str, values: Mapping[Any, str]) -> str:
    """Look up the value of a field in `values`; raise `CheckpointError` if it is not a key."""
    found = fields[name]
    if not isinstance(found, str) or found not in values:
        raise wrong(name, found, f"one of {', '.join(values)}")
    return values[found]


def as_activation(fields: Fields, name: str) -> str:
    """Return the reference's name of the activation that a field names."""
    return as_one_of(fields, name, ACTIVATIONS)


def activation_name(config: TransformerConfig) -> str:
    """Return transformers' name of an activation."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation)


def as_whole(fields: Fields, name: str, least: int = 1, expected: str = "a whole number, at least 1") -> int:
    """Return an integer field; raise `CheckpointError` if it is less than `least`."""
    if not is_whole(fields[name], least):
        raise wrong(name, fields[name], expected)
    return int(fields[name])


def as_layers(fields: Fields, name: str = "num_hidden_layers") -> int:
    """Return the number of layers; raise `CheckpointError` if there are more than `MOST_LAYERS`."""
    count = fields[name]
    if not is_whole(count, 0) or count > MOST_LAYERS:
        raise wrong(name, count, f"a whole number, at most {MOST_LAYERS}")
    return int(count)


def as_number(fields: Fields, name: str) -> float:
    """Return a field that is a number greater than 0; raise `CheckpointError` otherwise."""
    found = fields[name]
    if not is_number(found) or not 0 < found <= sys.float_info.max:  # an integer in JSON may exceed the largest float
        raise wrong(name, found, "a finite number greater than 0")
    return float(found)


def as_flag(fields: Fields, name: str) -> bool:
    """Return a boolean field; null means false."""
    if fields[name] not in (None, False, True):
        raise wrong(name, fields[name], "true or false")
    return bool(fields[name])


def as_head_width(
    fields: Fields, width: str = "head_dim", heads: str = "num_attention_heads", embed_dim: str = "hidden_size"
) -> dict[str, Any]:
    """Return `attention_head_dim` if the width of a head is not embed_dim / num_heads, else nothing."""
    if fields[width] is None or as_whole(fields, width) * as_whole(fields, heads) == as_whole(fields, embed_dim):
        return {}
    return {"attention_head_dim": fields[width]}


def nearest(*candidates: float, right: Callable[[float], bool]) -> float:
    """Return the first number that is `right` among the candidates and the floats near the last candidate.

    If none is right, return the last candidate. The function inverts a conversion that rounds.
    """
    last = candidates[-1]
    near = [last + step * math.ulp(last) for step in sorted(range(-8, 9), key=abs)]
    return next((each for each in (*candidates, *near) if each and right(each)), last)
