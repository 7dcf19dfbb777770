"""Determine which fields the compared calls exercise. A field is active if its change moves a small model's logits. An
active field is exercised if its change moves the logits of a compared call by more than rounding."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

import numpy as np

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.errors import ConfigError
from transparity.parameters import parameter_shapes
from transparity_conformance.cache import digest, kept
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.probes import Probe, mixed_inputs, probe_parameters
from transparity_conformance.oracle.reach.long import LongProbe
from transparity_conformance.oracle.reach.models import small_system
from transparity_numpy.transformer import transformer

DTYPE = "float32"
"""A change of the logits counts if it exceeds rounding in this precision, for ports of any precision."""

SHOWS = 1e-5
"""A field is active if its change moves a small model's logits by more than this share of the largest."""

Change = tuple[str, str]
"""A field and its change: `=` and another choice, an operation such as `*10`, or `alike` (all layers of one kind)."""

TIMES = {"*2": 2.0, "/2": 0.5}
"""Factors of all elements of a tuple."""

OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "off": lambda value: None,
    "zero": lambda value: 0,
    "*10": lambda value: value * 10,
    "/10": lambda value: value // 10 if isinstance(value, int) else value / 10,
    "*2": lambda value: value * 2,
    "/2": lambda value: value // 2 if isinstance(value, int) else value / 2,
    "+1": lambda value: value + 1,
    "-1": lambda value: value - 1,
}


def is_choice(name: str) -> bool:
    return get_origin(FIELD_TYPES[name]) is Literal


def changes(config: TransformerConfig, name: str) -> list[Change]:
    """Return the changes of a field; none for the values None and False."""
    value, kind = getattr(config, name), FIELD_TYPES[name]
    if name == "layer_types":  # the change also removes `layer_overrides`
        return [(name, "alike")] if value else []
    if value is None or value is False or get_origin(kind) is Mapping:
        return []
    if get_origin(kind) is tuple:
        return [(name, operation) for operation in TIMES if get_args(kind)[0] is float and value]
    if is_choice(name):
        return [(name, f"={choice}") for choice in get_args(kind) if choice != value]
    return [(name, "not")] if kind is bool else [(name, operation) for operation in OPERATIONS]


def changed(config: TransformerConfig, change: Change) -> TransformerConfig | None:
    """Return a changed configuration; None if it is equal, invalid, or needs other parameters."""
    name, how = change
    value: Any = getattr(config, name)
    more: dict[str, Any] = {}
    if how == "alike":
        value, more = (), {"layer_overrides": {}}
    elif how == "not":
        value = not value
    elif how.startswith("="):
        value = how[1:]
    elif isinstance(value, tuple):
        value = tuple(number * TIMES[how] for number in value)
    elif value is not None:
        value = OPERATIONS[how](value)
    other = replaced(config, **{name: value}, **more)
    return None if other == config else other


def replaced(config: TransformerConfig, **fields: Any) -> TransformerConfig | None:
    """Return the configuration with other `fields`; None if it is invalid or needs other parameters."""
    try:
        other = dataclasses.replace(config, **fields)
    except ConfigError:
        return None
    is_read = not _fields_of_shapes(config).isdisjoint(fields)
    return None if is_read and not _shapes(other).items() <= _shapes(config).items() else other


_shapes = functools.lru_cache(maxsize=1024)(parameter_shapes)


@functools.lru_cache(maxsize=64)
def _fields_of_shapes(config: TransformerConfig) -> frozenset[str]:
    read = set[str]()
    parameter_shapes(_watched(config, read))
    return frozenset(read)


def logits_with(config: TransformerConfig, parameters: Arrays, inputs: Mapping[str, Any]) -> np.ndarray | None:
    """Return the reference's logits; None if an input is missing or does not fit."""
    shapes = parameter_shapes(config) if isinstance(config, _Watched) else _shapes(config)
    held = {name: parameters[name].astype(np.float64, copy=False) for name in shapes}
    names = (*config.input_names, *config.further_inputs)
    if any(name not in inputs for name in names):
        return None
    try:
        with np.errstate(all="ignore"):
            return transformer(config, held, **{name: inputs[name] for name in names})
    except (IndexError, ValueError):  # for example, a table of positions may be too short
        return None


def _differs(expected: np.ndarray, other: np.ndarray | None, tolerance: float) -> bool:
    if other is None or other.shape != expected.shape:
        return False
    return not float(np.abs(other - expected).max(initial=0.0)) <= tolerance


class _Watched(TransformerConfig):
    """Records which attributes of a configuration and its layers the reference reads."""

    read: set[str]

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "read").add(name)
        return object.__getattribute__(self, name)


def _watched(config: TransformerConfig, read: set[str]) -> TransformerConfig:
    copy = object.__new__(_Watched)
    kinds = {kind: copy if own is config else _watched(own, read) for kind, own in config.layer_kinds.items()}
    values = {name: getattr(config, name) for name in FIELD_TYPES}
    view = config.for_stack("encoder")
    views = {"encoder_view": copy if view is config else _watched(view, read), "layer_kinds": kinds}
    object.__getattribute__(copy, "__dict__").update(values, **views, read=read)
    return copy


def fields_read(config: TransformerConfig, parameters: Arrays, inputs: Mapping[str, Any]) -> set[str]:
    read = set[str]()
    logits_with(_watched(config, read), parameters, inputs)
    return read & FIELD_TYPES.keys()


@dataclasses.dataclass(frozen=True)
class _Small:
    config: TransformerConfig
    models: tuple[tuple[Arrays, Mapping[str, Any]], ...]
    logits: tuple[np.ndarray, ...]
    read: frozenset[str]


@functools.lru_cache(maxsize=64)
def _small(config: TransformerConfig) -> _Small:
    # If the model has a single head, keep one head, because some fields then have no effect.
    small = small_system(config, **({"num_heads": 1, "num_key_value_heads": None} if config.num_heads == 1 else {}))
    inputs = mixed_inputs(small)
    models = [(probe_parameters(small), inputs), (probe_parameters(small, 3, 1e-3), inputs)]
    models += [(models[0][0], mixed_inputs(small, source=3, target=3))]  # shorter than the thresholds
    given = tuple(({name: held.astype(np.float64) for name, held in each.items()}, inputs) for each, inputs in models)
    logits = [logits_with(small, *model) for model in given]
    assert all(each is not None for each in logits)
    read = frozenset().union(*(fields_read(small, *model) for model in given))
    return _Small(small, given, tuple(each for each in logits if each is not None), read)


@functools.lru_cache(maxsize=4096)
def is_active(config: TransformerConfig, change: Change) -> bool:
    small = _small(config)
    if change[0] not in small.read:
        return False
    other = changed(small.config, change)
    if other is None or changed(config, change) is None:
        return False
    return any(
        _differs(logits, logits_with(other, *model), SHOWS * float(np.abs(logits).max()))
        for model, logits in zip(small.models, small.logits, strict=True)
    )


def exercised(config: TransformerConfig, probes: Sequence[Probe]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the active fields that the calls exercise, and the others. A choice is exercised if each other value
    changes the logits of a call; a number, if an operation such as `*10` does."""
    calls = [None if isinstance(probe, LongProbe) else probe.oracle.identity for probe in probes]
    whole = json.dumps([config.as_dict(), calls])
    seen, unseen = kept(None if None in calls else digest("features", whole), lambda: _exercised(config, probes))
    return tuple(seen), tuple(unseen)


def _exercised(config: TransformerConfig, probes: Sequence[Probe]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    results: dict[str, list[bool]] = {}
    for name in (field.name for field in dataclasses.fields(config)):
        for change in changes(config, name):
            if (is_choice(name) or not any(results.get(name, ()))) and is_active(config, change):
                results.setdefault(name, []).append(any(is_visible(probe, change) for probe in probes))
    seen = {name: (all if is_choice(name) else any)(of_field) for name, of_field in results.items()}
    return tuple(name for name in seen if seen[name]), tuple(name for name in seen if not seen[name])


def is_visible(probe: Probe, change: Change) -> bool:
    known: dict[Change, bool] = probe.visible_changes
    if change not in known:
        other = changed(probe.config, change)
        known[change] = other is not None and _shows(probe, other)
    return known[change]


def _shows(probe: Probe, other: TransformerConfig) -> bool:
    if isinstance(probe, LongProbe):
        return probe.oracle.shows(other, probe.budget(DTYPE))
    logits = logits_with(other, probe.parameters, probe.inputs)
    return _differs(probe.oracle.expected["logits"], logits, probe.oracle.budget("logits", DTYPE))


def covered_sizes(configs: Iterable[TransformerConfig]) -> dict[str, list[int]]:
    every = list(configs)
    vocabularies = [
        config.stack_vocab_size(config.input_stack(name)) for config in every for name in config.token_inputs
    ]
    return {
        "heads": [config.num_heads for config in every],
        "head_dim": [config.head_dim for config in every],
        "embed_dim": [config.embed_dim for config in every],
        **({"vocabulary": vocabularies} if vocabularies else {}),
    }
