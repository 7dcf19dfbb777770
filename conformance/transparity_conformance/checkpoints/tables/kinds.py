"""Layers that differ: windows, positions and feed-forwards by the kind of a layer."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from transparity.config import FULL, SLIDING, TransformerConfig, repeating
from transparity_conformance.checkpoints.tables.rows import FieldRow, derived
from transparity_conformance.checkpoints.tables.values import Fields, as_layers, as_whole, wrong


def by_kind(kinds: Sequence[str], facts: Mapping[str, Fields]) -> dict[str, Any]:
    """Return our fields for layers that differ.

    Args:
        kinds: The kind of each layer.
        facts: Our `PER_LAYER` fields of each kind. The first kind gives the general values, but windows and rotary
        positions of any kind are kept.
    """
    present = [kind for kind in facts if kind in kinds]
    if not present:
        return {**next(iter(facts.values())), "sliding_window": None}
    found = dict(facts[present[0]])
    for name, nothing in (("sliding_window", None), ("positions", "none")):
        if name in found:
            found[name] = next((facts[kind][name] for kind in present if facts[kind][name] != nothing), nothing)
    if len(present) == 1:
        return found
    return found | {"layer_types": repeating(kinds), "layer_overrides": {kind: facts[kind] for kind in present}}


def by_both(found: Fields, kinds: Sequence[str], facts: Mapping[str, Fields], first: str) -> dict[str, Any]:
    """Return our fields for layers that differ in two ways: by `found`, and by `kinds` with `facts`.

    Args:
        first: The kind of all layers, if `found` has only one kind.
    """
    rest, own = dict(found), found.get("layer_overrides", {})
    kinds_found = list(itertools.islice(itertools.cycle(rest.pop("layer_types", (first,))), len(kinds)))
    rest.pop("layer_overrides", None)
    both = list(zip(kinds_found, kinds, strict=True))
    joined = {
        f"{one}_{other}": {**own.get(one, {}), **facts[other]}
        for one, other in sorted(set(both), reverse=True)  # experts first
    }
    return rest | (by_kind([f"{one}_{other}" for one, other in both], joined) if both else {})


def windows(layer_types: Any, window: Any, count: int) -> dict[str, Any]:
    """Convert `layer_types` of `count` layers to `sliding_window` and the kinds of layers with and without it."""
    facts = {SLIDING: {"sliding_window": window}, FULL: {"sliding_window": None}}
    return by_kind(kinds_given(layer_types, count), facts)


def windows_in_turn(window: int) -> FieldRow:
    """Return a row for windows in every other layer, from the first, unless `layer_types` differs."""

    def read(fields: Fields) -> dict[str, Any]:
        return windows(kinds_every(fields, 2), fields["sliding_window"], as_layers(fields))

    return derived(read, window_fields, sliding_window=window, layer_types=None)


def kinds_given(layer_types: Any, count: int, known: tuple[str, str] = (SLIDING, FULL)) -> list[str]:
    """Return the field `layer_types` of `count` layers, each of a `known` kind."""
    is_known = isinstance(layer_types, list) and all(kind in known for kind in layer_types)
    if not is_known or len(layer_types) != count:
        raise wrong("layer_types", layer_types, f"{' or '.join(known)} for each of {count} layers")
    return list(layer_types)


def kinds_every(
    fields: Fields, every: str | int, known: tuple[str, str] = (SLIDING, FULL), *, first: bool = False
) -> list[str]:
    """Return the kinds of all layers: `layer_types`, or the second `known` kind at regular intervals.

    Args:
        every: The interval, or the field that has it.
        first: Whether the first layer of each group has that kind, instead of the last.
    """
    count = as_layers(fields)
    if fields["layer_types"] is not None:
        return kinds_given(fields["layer_types"], count, known)
    number = as_whole(fields, every) if isinstance(every, str) else every
    return [known[0] if (i + (not first)) % number else known[1] for i in range(count)]


def own_layers(config: TransformerConfig) -> list[TransformerConfig]:
    """Return the configuration of each layer of the last stack."""
    stack = config.stacks[-1]
    return [config.for_layer(stack, i) for i in range(config.stack_num_layers(stack))]


def layer_kinds(config: TransformerConfig) -> list[str]:
    """Return the field `layer_types`: the kind of attention of each layer."""
    return [FULL if each.sliding_window is None else SLIDING for each in own_layers(config)]


def window_fields(config: TransformerConfig) -> dict[str, Any]:
    """Return the window and the kinds of layers."""
    return {"sliding_window": config.sliding_window, "layer_types": layer_kinds(config)}
