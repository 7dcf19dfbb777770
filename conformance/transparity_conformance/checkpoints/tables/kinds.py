"""Layers of several kinds, which differ in windows, positions or feed-forwards."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from transparity.config import TransformerConfig
from transparity_conformance.checkpoints.tables import rows as row
from transparity_conformance.checkpoints.tables.rows import Fields

SLIDING, FULL = "sliding_attention", "full_attention"
"""The usual names of layers with and without a sliding window."""


def full_attention_every(layers: int) -> dict[str, Any]:
    """Return the fields of a model in which each `layers`-th layer has no window, and all other layers have one."""
    types = (SLIDING,) * (layers - 1) + (FULL,)
    return {"layer_types": types, "layer_overrides": {FULL: {"sliding_window": None}}}


def repeating(types: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest list of kinds that, repeated, starts with `types`."""
    count = len(types)
    cycles = (tuple(types[:length]) for length in range(1, count + 1))
    return next((cycle for cycle in cycles if tuple(types) == (cycle * count)[:count]), ())


def by_kind(kinds: Sequence[str], facts: Mapping[str, Fields]) -> dict[str, Any]:
    """Return the `TransformerConfig` fields for layers of several kinds. `kinds` lists the kind of each layer, and
    `facts` has the fields of each kind (see `config.PER_LAYER`).

    The model's own fields come from the first kind in `facts` that some layer has. However, the model's window comes
    from the first kind with a window, and its positions from the first kind with positions.
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
    """Combine two properties of layers, such as experts and windows. `found` has the `by_kind` fields of the first
    property. `kinds` and `facts` describe the second. If all layers have the same first property, `first` is its
    kind."""
    rest, own = dict(found), found.get("layer_overrides", {})
    kinds_found = list(itertools.islice(itertools.cycle(rest.pop("layer_types", (first,))), len(kinds)))
    rest.pop("layer_overrides", None)
    both = list(zip(kinds_found, kinds, strict=True))
    joined = {
        f"{one}_{other}": {**own.get(one, {}), **facts[other]}
        for one, other in sorted(set(both), reverse=True)  # layers with experts first
    }
    return rest | (by_kind([f"{one}_{other}" for one, other in both], joined) if both else {})


def windows(layer_types: Any, window: Any, count: int) -> dict[str, Any]:
    facts = {SLIDING: {"sliding_window": window}, FULL: {"sliding_window": None}}
    return by_kind(kinds_given(layer_types, count), facts)


def used_window(fields: Fields) -> Any:
    return fields["sliding_window"] if row.as_flag(fields, "use_sliding_window") else None


def check_window(fields: Fields, kinds: Any) -> None:
    """Raise `CheckpointError` if a layer needs a window, but config.json turns windows off or has no window size."""
    if used_window(fields) is None and kinds != [FULL] * row.as_layers(fields):
        expected = "true, with a sliding_window, because layer_types names a layer with a window"
        raise row.wrong("use_sliding_window", fields["use_sliding_window"], expected)


def read_windows_in_turn(fields: Fields) -> dict[str, Any]:
    """Return the fields about windows. If config.json has no `layer_types`, layers 0, 2, 4, … have a window."""
    return windows(kinds_every(fields, 2), fields["sliding_window"], row.as_layers(fields))


def kinds_given(layer_types: Any, count: int, known: tuple[str, str] = (SLIDING, FULL)) -> list[str]:
    """Return `layer_types`; raise `CheckpointError` unless the list has a `known` kind for each of `count` layers."""
    is_known = isinstance(layer_types, list) and all(kind in known for kind in layer_types)
    if not is_known or len(layer_types) != count:
        raise row.wrong("layer_types", layer_types, f"{' or '.join(known)} for each of {count} layers")
    return list(layer_types)


def kinds_every(
    fields: Fields, every: str | int, known: tuple[str, str] = (SLIDING, FULL), *, first: bool = False
) -> list[str]:
    """Return the kind of each layer. Without `layer_types`, the second `known` kind occurs at regular intervals.

    `every` is the interval, or the name of the field that contains the interval. The second kind ends each interval or,
    with `first`, starts it.
    """
    count = row.as_layers(fields)
    if fields["layer_types"] is not None:
        return kinds_given(fields["layer_types"], count, known)
    number = row.as_whole(fields, every) if isinstance(every, str) else every
    return [known[0] if (i + (not first)) % number else known[1] for i in range(count)]


def own_layers(config: TransformerConfig) -> list[TransformerConfig]:
    stack = config.stacks[-1]
    return [config.for_layer(stack, i) for i in range(config.stack_num_layers(stack))]


def layer_kinds(config: TransformerConfig) -> list[str]:
    return [FULL if each.sliding_window is None else SLIDING for each in own_layers(config)]


def window_fields(config: TransformerConfig) -> dict[str, Any]:
    return {"sliding_window": config.sliding_window, "layer_types": layer_kinds(config)}


write_windows_in_turn = window_fields
