"""Group a model's parameters in the order of the forward pass. The search matches one group at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from transparity.taps import in_every_layer, in_layer
from transparity_conformance.diagnosis.walk import perturbed, walk
from transparity_conformance.oracle.probes import Probe

JOINED = dict.fromkeys(("query", "query_norm", "key", "key_norm"), "scores") | {"value": "context"}
"""The activation that tells apart linear maps or norms of equal shapes: `scores` for query and key."""


@dataclass(frozen=True)
class Map:
    """The parameters of a module, such as a linear map or a norm, and the first activation that depends on them."""

    parameters: tuple[str, ...]
    tap: str

    @property
    def is_shown(self) -> bool:
        return self.tap.endswith((".query", ".key", ".value")) and self.parameters[0].startswith(f"{self.tap}.")


@dataclass(frozen=True)
class Place:
    """Parameters that the search matches together: swapping two of them changes no activation before `tap`."""

    maps: tuple[Map, ...]
    tap: str
    """The first activation that changes if any two of the parameters are swapped."""
    taps: tuple[str, ...]
    """The activations after the previous group's `tap`, up to this `tap`; the port may have a fault at each."""

    @property
    def parameters(self) -> tuple[str, ...]:
        return tuple(name for each in self.maps for name in each.parameters)


def places_of(probe: Probe) -> Iterator[Place]:
    ours = walk(probe, {})
    groups: dict[str, dict[tuple[str, str], list[str]]] = {}
    for name, tap in _first_taps(probe, ours):
        scope, _, last = tap.rpartition(".")
        place = f"{scope}.{JOINED[last]}" if last in JOINED else tap
        groups.setdefault(place, {}).setdefault((name.rpartition(".")[0], tap), []).append(name)
    between: list[str] = []
    for tap in ours:
        between.append(tap)
        if tap in groups:
            maps = tuple(Map(tuple(names), first) for (_, first), names in groups[tap].items())
            yield Place(maps, tap, tuple(between))
            between = [tap]


def _first_taps(probe: Probe, ours: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str]]:
    """Yield each parameter with the first activation that depends on it, in the first layer of each kind."""
    known: dict[tuple[str, str], str | None] = {}
    for name in (name for name in probe.parameters if ".experts." not in name):
        stack, layer, _ = in_layer(name) or ("", 0, "")
        key = in_every_layer(name), probe.config.layer_kind(stack, layer) if stack else ""
        if key not in known:
            changed = {**probe.parameters, name: perturbed(probe.parameters[name])}
            moved = walk(dataclasses.replace(probe, parameters=changed), {})
            tap = next((tap for tap in ours if not np.array_equal(moved[tap], ours[tap], equal_nan=True)), None)
            known[key] = tap and in_every_layer(tap)
        if tap := known[key]:
            yield name, tap.replace("{i}", str(layer))
