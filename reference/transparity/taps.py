"""The tap: every named activation passes through `tap(name, value) -> value`.

A tap can record, replace, round or perturb the values that pass through it. It is an argument, never a global, so that
functions stay pure for `jax.jit` and `torch.compile`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity.parts.feed_forward import ROUTER_CHOSEN as ROUTER_CHOSEN
from transparity.parts.model import model

Tap = Callable[[str, Any], Any]


def identity(name: str, value: Any) -> Any:
    """Return the value unchanged: the tap of a call without a listener."""
    return value


def scoped(tap: Tap, scope: str) -> Tap:
    """Prefix every name with `scope`; `identity` stays itself, so that a call without a listener costs nothing."""
    if tap is identity:
        return identity

    def scoped_tap(name: str, value: Any) -> Any:
        return tap(f"{scope}.{name}", value)

    return scoped_tap


def recording(into: dict[str, Any]) -> Tap:
    """Return a tap that stores every value in `into` under its name."""

    def record(name: str, value: Any) -> Any:
        into[name] = value
        return value

    return record


def chained(first: Tap, then: Tap) -> Tap:
    """Return a tap that applies `first`, then `then`."""
    return then if first is identity else lambda name, value: then(name, first(name, value))


def lengths_of(config: TransformerConfig, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of positions of each input by name.

    Return the number of positions: tokens, patches with the class token, or half of the frames of audio."""
    fixed = {name: config.positions_of(name) for name in config.input_names}
    return {name: fixed.get(name) or value.shape[1] for name, value in inputs.items()}


def tap_shapes(config: TransformerConfig, batch: int, **lengths: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tap of a forward pass, in the order of the pass.

    Args:
        config: the model.
        batch: the number of rows.
        lengths: the positions of each input by name: `source` and `target`, `tokens` or `pixels` (`lengths_of`).
    """
    sizes = lengths | {"batch": batch}
    found = model(config).taps
    return {
        name: tuple(sizes[axis] if isinstance(axis, str) else axis for axis in shape) for name, shape in found.items()
    }


def logits_shape(config: TransformerConfig, inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the logits of checked `inputs`, or of the other output that `config.head` names."""
    return tap_shapes(config, len(inputs[config.input_names[-1]]), **lengths_of(config, inputs))["logits"]
