"""Faults of a model that is sharded over several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity.parameters import parameter_shapes
from transparity_conformance.catalogue.fault import Fault, Patch, WalkState, fault
from transparity_conformance.catalogue.masks import layer_of, weighed
from transparity_conformance.catalogue.parameters import Rows, in_groups, of_layer, parts_at, repacked
from transparity_conformance.catalogue.position_bias import bias_at, sloped
from transparity_conformance.catalogue.sites import Value, parameters_of
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import MaskParts, split
from transparity_numpy.arithmetic.functional import linear
from transparity_numpy.positions.in_attention import alibi_slopes

ROW_PARALLEL = {"attention.output": ("output", "context"), "feed_forward.output": ("down", "hidden")}
"""Taps after linear maps with sharded inputs (row-parallel), with the map's name and input."""

FUSED = {
    "query, key and value": ("query", "key", "value"),
    "key and value": ("key", "value"),
    "gate and up": ("gate", "up"),
    "up and gate": ("up", "gate"),
}
"""Linear maps that ports fuse into one matrix, in the order of its rows."""


_fault = partial(fault, of_ranks=True)


def faults(config: TransformerConfig, site: str, ranks: int) -> Iterator[Fault]:
    if ranks > 1:
        yield from _row_parallel(config, site, ranks)
        yield from _fused(config, site, ranks)
        yield from _heads(config, site, ranks)
        yield from _layers(config, site, ranks)


def _row_parallel(config: TransformerConfig, site: str, ranks: int) -> Iterator[Fault]:
    role, inputs = next((row for end, row in ROW_PARALLEL.items() if site.endswith(end)), ("", ""))
    parts = parts_at(config, site)
    shapes = parameter_shapes(config)
    if (role or site == "logits") and parts and f"{parts[0]}.bias" in shapes:
        words, alter = {"name": role or parts[0], "ranks": ranks}, partial(_repeated, parts[0], ranks)
        yield _fault("bias-on-every-rank", "{name}", words=words, alter=alter)
    if not role:
        return
    twice: Patch = lambda state, site, value: value * value.dtype.type(ranks)
    yield _fault("reduced-twice", "reduced twice", words={"ranks": ranks}, patch=twice)
    if shapes.get(f"{parts[0]}.weight", (0, 1))[1] % ranks == 0:  # experts are sharded in another way
        words, patch = {"role": role, "ranks": ranks}, partial(_of_one_rank, role, inputs, ranks)
        yield _fault("not-reduced", "{role}", words=words, patch=patch)


def _repeated(part: str, ranks: int, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    name = f"{(parts_at(config, site) or [part])[0]}.bias"
    return {name: parameters[name] * parameters[name].dtype.type(ranks)}


def _of_one_rank(role: str, inputs: str, ranks: int, state: WalkState, site: str, value: Value) -> Value:
    scope = site.rpartition(".")[0]
    given, own = state.taps[f"{scope}.{inputs}"], parameters_of(state, f"{scope}.{role}")
    width = given.shape[-1] // ranks
    return linear(own | {"weight": own["weight"][:, :width]}, given[..., :width])


def _fused(config: TransformerConfig, site: str, ranks: int) -> Iterator[Fault]:
    scope, sublayer, tap = split(site)
    shapes = parameter_shapes(config)
    for name, roles in FUSED.items():
        if (tap if tap != "hidden" else "up") not in roles or (tap == "hidden") != (sublayer == "feed_forward"):
            continue
        names = [f"{scope}.{sublayer}.{role}.weight" for role in roles]
        if all(each in shapes and shapes[each][0] % ranks == 0 for each in names):
            words, alter = {"name": name, "ranks": ranks}, partial(_cut_across, roles, ranks)
            yield _fault("fused-cut-across", "{name}", words=words, alter=alter)


def _cut_across(roles: Sequence[str], ranks: int, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    scope, sublayer, tap = split(site)
    by_rank: Rows = lambda _, *rows: np.argsort(in_groups(ranks, *rows))
    changed = repacked([f"{scope}.{sublayer}.{role}" for role in roles], by_rank, config, parameters)
    own = [f"{scope}.{sublayer}.{role}" for role in (roles if tap == "hidden" else (tap,))]
    whole = [
        kind for kind in ("weight", "bias") if all(f"{scope}.{sublayer}.{role}.{kind}" in parameters for role in roles)
    ]
    return {name: changed[name] for name in (f"{each}.{kind}" for each in own for kind in whole)}


def _heads(config: TransformerConfig, site: str, ranks: int) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if (sublayer, tap) != ("self_attention", "scores") or config.num_heads % ranks:
        return
    local = np.arange(config.num_heads) % (config.num_heads // ranks)
    by_rank = partial(_fault, "heads-by-rank", words={"ranks": ranks})
    if config.has_relative_bias:
        yield by_rank("relative", patch=partial(_local_relative, local))
    if config.positions == "alibi":
        yield by_rank("alibi", patch=partial(sloped, lambda heads: alibi_slopes(heads)[local]))
        of_fewer = partial(sloped, lambda heads: alibi_slopes(heads // ranks)[local])
        yield by_rank("alibi of fewer heads", patch=of_fewer)


def _local_relative(local: np.ndarray, state: WalkState, site: str, value: Value) -> Value:
    bias = bias_at(state, site)
    return value - bias + bias[:, local]  # type: ignore[index]


def _layers(config: TransformerConfig, site: str, ranks: int) -> Iterator[Fault]:
    parts = site.split(".")
    if len(parts) < 4:
        return
    layers, layer = config.stack_num_layers(parts[0]), layer_of(site)
    for stages in (each for each in range(2, ranks + 1) if ranks % each == 0 and layers % each == 0):
        local = layer % (layers // stages)
        if local == layer:
            continue
        by_stage = partial(_fault, "layers-by-stage", words={"stages": stages})
        alter, window = partial(_of_local_layer, layers // stages), partial(_window_of, layers // stages)
        yield by_stage("weights, {stages} stages", alter=alter)
        own, others = (config.for_layer(parts[0], each).sliding_window for each in (layer, local))
        if parts[4:] == ["weights"] and own != others:
            yield by_stage("windows, {stages} stages", formula=weighed, window=window)


def _of_local_layer(size: int, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    return of_layer(layer_of(site) % size, config, parameters, site)


def _window_of(size: int, m: MaskParts) -> int | None:
    stack, is_self_attention = m.site.split(".")[0], split(m.site)[1] == "self_attention"
    return m.config.for_layer(stack, layer_of(m.site) % size).sliding_window if is_self_attention else None
