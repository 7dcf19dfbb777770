"""Taps: the named activations of a forward pass, and functions of the type `Tap` that receive them.

A model passes every tap to a tap function `tap(name, value) -> value`, and continues with the returned value. The
function can record, replace, round or perturb activations. The tap function is an argument, never a global, so that
models stay pure functions for `jax.jit` and `torch.compile`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any

from transparity.config import TransformerConfig
from transparity.parts.feed_forward import ROUTER_CHOSEN as ROUTER_CHOSEN
from transparity.parts.model import model

Tap = Callable[[str, Any], Any]

LAYER = re.compile(r"(.+?)\.layers\.(\d+)(?:\.(.*))?", re.DOTALL)


@functools.lru_cache(maxsize=2**14)  # the same names are split often
def in_layer(name: str) -> tuple[str, int, str] | None:
    """Return (`decoder`, 3, `output`) for the tap or parameter `decoder.layers.3.output`; None outside layers."""
    found = LAYER.fullmatch(name)
    return (found[1], int(found[2]), found[3] or "") if found else None


def in_every_layer(name: str) -> str:
    """Return `decoder.layers.{i}.output` for `decoder.layers.3.output`; names outside layers are returned unchanged."""
    return re.sub(r"(?<=\.layers\.)\d+", "{i}", name, count=1)


def identity(name: str, value: Any) -> Any:
    """Return the value unchanged; this is the default tap function."""
    return value


def scoped(tap: Tap, scope: str) -> Tap:
    """Return a tap function that puts `scope` before every name. For `identity`, return `identity`, which is faster."""
    if tap is identity:
        return identity

    def scoped_tap(name: str, value: Any) -> Any:
        return tap(f"{scope}.{name}", value)

    return scoped_tap


def recording(into: dict[str, Any]) -> Tap:
    """Return a tap function that stores every activation in `into` under its name."""

    def record(name: str, value: Any) -> Any:
        into[name] = value
        return value

    return record


def chained(first: Tap, then: Tap) -> Tap:
    """Return a tap function that applies `first`, then `then`."""
    return then if first is identity else lambda name, value: then(name, first(name, value))


def lengths_of(config: TransformerConfig, inputs: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of positions of each input by name."""
    fixed = {name: config.positions_of(name) for name in config.input_names}
    return {name: fixed.get(name) or value.shape[1] for name, value in inputs.items()}


def tap_shapes(config: TransformerConfig, batch: int, **lengths: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every activation of a forward pass, by name, in the order of computation.

    `batch` is the number of rows. `lengths` has the number of positions of each input, as `lengths_of` returns them.
    """
    sizes, kept = lengths | {"batch": batch}, vars(config).setdefault("_tap_shapes", {})  # as in `parts.model.model`
    key = tuple(sorted(sizes.items()))
    if key not in kept:
        kept.clear()
        kept[key] = {
            name: tuple(sizes[axis] if isinstance(axis, str) else axis for axis in shape)
            for name, shape in model(config).taps.items()
        }
    return dict(kept[key])


def logits_shape(config: TransformerConfig, inputs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the shape of the model's output, which `config.head` names, for checked `inputs`."""
    return tap_shapes(config, len(inputs[config.input_names[-1]]), **lengths_of(config, inputs))["logits"]
