"""Fields of the configuration that, changed together, shrink a difference that no fault of the catalogue explains."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from transparity.config import TransformerConfig
from transparity.errors import ConfigError
from transparity.parameters import parameter_shapes
from transparity_conformance.catalogue.fault import Fault, Hypothesis

ALTERNATIVES: dict[str, tuple[object, ...]] = {
    "norm": ("layer", "layer-unbiased", "rms"),
    "norm_position": ("pre", "post", "branch"),
    "branches": ("sequential", "parallel"),
    "norm_gain": ("weight", "one-plus-weight"),
    "final_norm": (False,),
    "positions": ("sinusoidal", "rotary", "alibi"),
    "rope_layout": ("interleaved", "halves"),
    "activation": ("relu", "gelu", "gelu-tanh", "silu"),
    "attention_scale": ("head_dim", "embed_dim", "none"),
    "embedding_scale": ("none", "embed_dim"),
    "target_mask": ("causal", "causal-and-padding"),
}
"""Values of fields in which families differ; those are tried that the port's parameters suffice for."""


MOST = 3
"""Fields that are changed together."""


def departures(config: TransformerConfig, left: Callable[[Hypothesis], float]) -> tuple[dict[str, object], float]:
    """Find the few fields whose change leaves least of the difference.

    Args:
        left: The difference that is left with a fault.

    Returns: the changed fields, and the share of the difference that is left with them.
    """
    before = left(changed({}))
    tried = [(left(changed(change)), index, change) for index, change in enumerate(_changes(config))]
    least, _, fields = min(tried, default=(before, 0, {}))
    return fields, least / before if before else 1.0


def changed(fields: Mapping[str, object]) -> Hypothesis:
    """The hypothesis that a port has other values of these fields."""
    return Hypothesis(Fault("several-fields", "", "", fields=fields))


def single_changes(config: TransformerConfig, besides: Mapping[str, object]) -> list[dict[str, object]]:
    """The changes of one field that need no parameter that the model does not have, on top of others."""
    values = {name: besides.get(name, getattr(config, name)) for name in ALTERNATIVES}
    every = [{name: value} for name, tried in ALTERNATIVES.items() for value in tried if value != values[name]]
    return [
        change for change in every if change.keys().isdisjoint(besides) and _is_possible(config, {**besides, **change})
    ]


def _changes(config: TransformerConfig) -> Iterator[dict[str, object]]:
    """Every change of up to `MOST` fields that needs no parameter that the model does not have, the fewest first."""
    single = [(name, value) for name in ALTERNATIVES for value in ALTERNATIVES[name] if value != getattr(config, name)]
    for size in range(1, MOST + 1):
        for chosen in combinations(single, size):
            change = dict(chosen)
            if len(change) == size and _is_possible(config, change):
                yield change


def _is_possible(config: TransformerConfig, change: Mapping[str, object]) -> bool:
    """Return whether the parameters of a model suffice for other fields."""
    shapes = parameter_shapes(config)
    try:
        needed = parameter_shapes(dataclasses.replace(config, **change))  # type: ignore[arg-type]
    except ConfigError:
        return False
    return all(shapes.get(parameter) == shape for parameter, shape in needed.items())
