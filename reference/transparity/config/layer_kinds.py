"""Layers that differ within one model: a repeating list of kinds, and the fields in which each kind differs."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transparity.errors import ConfigError, shown
from transparity.text import VALUE, safe

PER_LAYER = (
    "sliding_window",
    "window_kind",
    "query_temperature",
    "positions",
    "rope_theta",
    "rotary_scaling",
    "rotary_factor",
    "rotary_slow_turns",
    "rotary_fast_turns",
    "rotary_original_length",
    "rotary_truncate",
    "rotary_attention_factor",
    "rotary_short_factors",
    "rotary_long_factors",
    "num_experts",
    "feed_forward_dim",
    "attention_norm",
    "mixer",
)
"""The fields that may differ between the layers of a model."""

ALIKE = "all"
"""The kind of every layer of a configuration without `layer_types`."""


class Overrides(Mapping[str, Any]):
    """An immutable, hashable mapping, because a configuration that contains overrides must be hashable."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, name: str) -> Any:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def checked_types(name: str, value: Any) -> tuple[str, ...]:
    """Return the shortest list that `value` repeats; raise `ConfigError` unless `value` is a list of names."""
    given = tuple(value) if isinstance(value, list | tuple) else (None,)
    if wrong := [kind for kind in given if not isinstance(kind, str) or not kind]:
        says = f"{name} is {shown(value)}; expected a list of names, such as ['sliding_attention', 'full_attention']"
        raise ConfigError(f"{says}." if wrong == [None] else f"{says}, but {shown(wrong[0])} is not a name.")
    lengths = (length for length in range(1, len(given)) if given == given[:length] * (len(given) // length))
    return given[: next(lengths, len(given))]


def checked_overrides(name: str, value: Any) -> Overrides:
    """Return the overrides by kind as immutable mappings; raise `ConfigError` for a field that is not in
    `PER_LAYER`."""
    if not isinstance(value, Mapping) or not all(isinstance(fields, Mapping) for fields in value.values()):
        raise ConfigError(f"{name} is {shown(value)}; it should be {{kind: {{field: value}}}}.")
    for kind, fields in value.items():
        for field in fields:
            if field not in PER_LAYER:
                close = difflib.get_close_matches(safe(str(field), VALUE), PER_LAYER, 1)
                expected = f"; the nearest is {close[0]}" if close else f", such as {PER_LAYER[0]}"
                raise ConfigError(
                    f"{name} has {shown(field)} for layers of the kind {shown(kind)}; expected a field in which layers "
                    f"may differ{expected}."
                )
    return Overrides({kind: Overrides(fields) for kind, fields in value.items()})


def kinds_of(config: Any, types: Sequence[str], overrides: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the configuration of each kind of layer of a `TransformerConfig` (`Any`, to avoid an import cycle).

    Raises `ConfigError` if an override is invalid, or if `layer_overrides` has a kind that is not in `layer_types`.
    """
    if not types and not overrides:
        return {ALIKE: config}
    kinds = tuple(dict.fromkeys(types))
    for kind in overrides:
        if kind not in kinds:
            listed = ", ".join(kinds) or "none"
            raise ConfigError(f"layer_overrides has the kind {shown(kind)}, which is not in layer_types ({listed}).")
    return {kind: _of_kind(config, kind, overrides.get(kind, {})) for kind in kinds}


def _of_kind(config: Any, kind: str, fields: Mapping[str, Any]) -> Any:
    try:
        own = dataclasses.replace(config, layer_types=(), layer_overrides={}, **fields)
    except ConfigError as error:
        raise ConfigError(f"layer_overrides for layers of the kind {shown(kind)} is not valid: {error}") from None
    if own.positions != config.positions and (config.positions, own.positions) != ("rotary", "none"):
        raise ConfigError(
            f"layer_overrides changes positions from {config.positions!r} to {own.positions!r} for layers of the kind "
            f"{shown(kind)}; the only possible change is from 'rotary' to 'none'."
        )
    if own.sliding_window is not None and config.sliding_window is None:
        raise ConfigError(
            f"layer_overrides has a sliding_window of {own.sliding_window} for layers of the kind {shown(kind)}; set "
            "sliding_window too, and override it by null where layers have no window."
        )
    return own


def differing(config: Any, kinds: Mapping[str, Any]) -> Overrides:
    """Return the fields in which each of the `kinds` differs from `config`."""
    changes = {
        kind: {name: getattr(own, name) for name in PER_LAYER if getattr(own, name) != getattr(config, name)}
        for kind, own in kinds.items()
    }
    return Overrides({kind: Overrides(fields) for kind, fields in changes.items() if fields})
