"""Faults with positions inside attention: how queries and keys are turned, and what distances add to scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import RopeLayout, TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, NumericFault, WalkState
from transparity_conformance.diagnosis.faults.sites import Value, distances_at, keys_name, met, parameters_of, split
from transparity_conformance.oracle.budgets import rounded_to
from transparity_numpy.normalization import head_norm
from transparity_numpy.positions import alibi_slopes, places, relative_buckets, rotary_frequencies, rotate

ROTATED = {"query_rotated": "queries", "key_rotated": "keys"}

Fields = Callable[[TransformerConfig], dict[str, Any]]
"""What a port takes fields of a configuration to be, in a model of any size."""

KNOWN_BASES = (10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 1000.0)

OTHER_PAIRS: dict[RopeLayout, RopeLayout] = {"interleaved": "halves", "halves": "interleaved"}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if tap in ROTATED:
        yield from _rotary_faults(config)
        yield from _of_one(config, tap)
    if tap == "scores" and sublayer == "self_attention":
        if config.positions == "relative":
            yield from _relative_faults(config, site)
        if config.positions == "alibi":
            yield from _alibi_faults(config)
        if config.positions in ("relative", "alibi"):
            yield from _bias_faults(config, site)


def _rotary_faults(config: TransformerConfig) -> Iterator[Fault]:
    """What is done to queries and keys alike."""
    other = OTHER_PAIRS[config.rope_layout]
    apart = {"interleaved": "neighbours", "halves": "half of them apart"}
    says = f"the features that are turned together are {apart[other]}, not {apart[config.rope_layout]}"
    yield _turned("rotary-layout", other, says, lambda config: {"rope_layout": OTHER_PAIRS[config.rope_layout]})
    for base in KNOWN_BASES:
        if base != config.rope_theta:
            yield other_base(config, base)
    for name, says, fields in SCALINGS:
        if (config.rotary_scaling, name) in POSSIBLE_SCALINGS:
            yield _turned("rotary-scaling", name, says, fields)
    for name, share in SHARES.items():
        if _turned_share(config, share) != config.rotated_dim:
            says = f"{_turned_share(config, share)} of a head's {config.head_dim} features are turned"
            says += f", not {config.rotated_dim}"
            yield _turned("rotary-partial", name, says, partial(_sharing, share))
    if config.rotated_dim < config.head_dim:
        says = f"angles are position / base^(2 i / {config.head_dim}), of all features of a head, not of those turned"
        yield Fault("rotary-partial", "angles of all", says, patch=partial(_turn, {}, frequencies=_over_all_features))
    yield Fault("rotary-missing", "both", "queries and keys are not turned", patch=_not_turned)
    says = "queries and keys are turned the other way"
    yield Fault("rotary-direction", "both", says, patch=partial(_turn, {}, sign=-1))
    for kind in ("bfloat16", "float16"):
        for part, says in IN_HALF.items():
            in_half = partial(_turned_in_half, kind, part)
            yield Fault("rotary-precision", f"{part} in {kind}", says.format(kind), patch=in_half)
    if config.query_key_norm:
        says = "queries and keys are turned before they are normalised"
        yield Fault("query-key-norm", "behind the rotation", says, patch=_normed_behind)


def _of_one(config: TransformerConfig, tap: str) -> Iterator[Fault]:
    """What is done to the queries or to the keys alone."""
    which = ROTATED[tap]
    yield Fault("rotary-missing", which, f"{which} are not turned", patch=_not_turned)
    says = f"{which} are turned the other way"
    yield Fault("rotary-direction", which, says, patch=partial(_turn, {}, sign=-1))
    for shift in (1, -1):
        says = f"{which} are turned as if they stood {'later' if shift > 0 else 'earlier'} by one"
        moved = partial(_turn, {}, shift=shift)
        yield Fault("rotary-position", f"{which} {shift:+d}", says, patch=moved, value=shift)


IN_HALF = {
    "frequencies": "the frequencies of the rotary angles are rounded to {}",
    "angles": "the rotary angles are computed in {}",
    "tables": "the cosines and sines of the rotary angles are rounded to {}",
    "everything": "the rotary angles, their cosines and their sines are computed in {}",
}
"""What of the rotation people keep in half precision, as whole models cast to it do with what is no parameter."""

SHARES = {"all": 1.0, "half": 0.5, "a quarter": 0.25}
"""Of a head's features: how many people turn."""


def _turned_share(config: TransformerConfig, share: float) -> int:
    return max(2, int(share * config.head_dim) // 2 * 2)


def _sharing(share: float, config: TransformerConfig) -> dict[str, Any]:
    return {"rotary_dim": _turned_share(config, share)}


SCALINGS: tuple[tuple[str, str, Fields], ...] = (
    ("left out", "the rotary scaling is left out", lambda config: {"rotary_scaling": "none"}),
    ("linear", "all angles are scaled, not the slow ones alone", lambda config: {"rotary_scaling": "linear"}),
    ("multiplied", "angles are multiplied by the factor", lambda config: {"rotary_factor": 1 / config.rotary_factor}),
    ("llama3", "the slow angles alone are scaled, not all", lambda config: {"rotary_scaling": "llama3"}),
)

POSSIBLE_SCALINGS = {
    (right, name)
    for right, names in {
        "linear": ("left out", "multiplied", "llama3"),
        "llama3": ("left out", "multiplied", "linear"),
    }.items()
    for name in names
}


def other_base(config: TransformerConfig, base: float) -> Fault:
    says = f"the base of the rotary angles is {base:.6g} instead of {config.rope_theta:g}"
    return _turned("rotary-base", f"{base:.6g}", says, lambda _: {"rope_theta": base}, base)


def other_factor(config: TransformerConfig, factor: float) -> Fault:
    says = f"the factor of the rotary scaling is {factor:.6g} instead of {config.rotary_factor:g}"
    return _turned("rotary-scaling", f"factor {factor:.6g}", says, lambda _: {"rotary_factor": factor}, factor)


def _turned(identity: str, variant: str, description: str, fields: Fields, value: float | None = None) -> Fault:
    return Fault(identity, variant, description, patch=partial(_turn, fields), value=value)


def _before_rotation(state: WalkState, site: str) -> Value:
    name = site.removesuffix("_rotated")
    return state.taps[f"{name}_norm" if state.config.query_key_norm else name]


def _turn(
    fields: Fields | dict[str, Any],
    state: WalkState,
    site: str,
    value: Value,
    *,
    sign: int = 1,
    shift: int = 0,
    frequencies: Callable[[TransformerConfig], np.ndarray] = rotary_frequencies,
) -> Value:
    changes = fields(state.config) if callable(fields) else fields
    return _rotated(
        dataclasses.replace(state.config, **changes), _before_rotation(state, site), sign, shift, frequencies
    )


def _rotated(
    config: TransformerConfig,
    x: Value,
    sign: int = 1,
    shift: int = 0,
    frequencies: Callable[[TransformerConfig], np.ndarray] = rotary_frequencies,
) -> Value:
    angles = sign * (np.arange(x.shape[2])[:, None] + shift) * frequencies(config)
    rotation = (np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype))
    return rotate(x, rotation, config.rope_layout)


def _turned_in_half(kind: str, part: str, state: WalkState, site: str, value: Value) -> Value:
    x, frequencies = _before_rotation(state, site), rotary_frequencies(state.config)
    if part != "tables":
        frequencies = rounded_to(frequencies, kind)
    angles = np.arange(x.shape[2])[:, None] * frequencies
    if part in ("angles", "everything"):
        angles = rounded_to(angles, kind)
    tables = [np.cos(angles), np.sin(angles)]
    if part in ("tables", "everything"):
        tables = [rounded_to(table, kind) for table in tables]
    return rotate(x, (tables[0].astype(x.dtype), tables[1].astype(x.dtype)), state.config.rope_layout)


def _over_all_features(config: TransformerConfig) -> np.ndarray:
    return rotary_frequencies(dataclasses.replace(config, rotary_dim=None))[: config.rotated_dim // 2]


def _not_turned(state: WalkState, site: str, value: Value) -> Value:
    return _before_rotation(state, site)


def _normed_behind(state: WalkState, site: str, value: Value) -> Value:
    name = site.removesuffix("_rotated")
    return head_norm(state.config, parameters_of(state, f"{name}_norm"), _rotated(state.config, state.taps[name]))


def bias_at(state: WalkState, site: str) -> Value | None:
    """What distances add to the scores at `site`; None: nothing."""
    scope, sublayer, _ = split(site)
    if sublayer != "self_attention":
        return None
    stack, length = scope.split(".")[0], state.inputs[keys_name(state.config, site)].shape[1]
    table = {"relative_bias": {"weight": state.parameters.get(f"{stack}.relative_bias.weight")}}
    dtype = met(state, f"{scope}.{sublayer}", "query").dtype
    return places(state.config, table, np.arange(length)[None], length, dtype, both=stack == "encoder").bias


def _relative_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    both = site.startswith("encoder")
    says = "buckets are of one direction: a later key is as near as the query itself"
    if not both:
        says = "buckets are of both directions, where only the past is seen: half of them are left"
    yield _bucketed("relative-buckets", "other direction", says, _other_directions)
    says = "distances are query − key, not key − query"
    yield _bucketed("relative-direction", "turned", says, _turned_round)
    for most in (128, 64, 32, 20):
        if most != config.relative_max_distance:
            says = f"the last bucket begins at {most}, not at {config.relative_max_distance}"
            yield _bucketed("relative-buckets", f"up to {most}", says, partial(_up_to, most), most)
    for name, change, says in (
        ("all exact", _all_exact, "every distance has a bucket of its own, as far as they go"),
        ("rounded", partial(_rounded, np.round), "shared buckets are rounded, not cut off"),
        ("rounded up", partial(_rounded, np.ceil), "shared buckets are rounded up, not cut off"),
        ("a quarter exact", _fewer_exact, "half as many distances as should have a bucket of their own"),
    ):
        yield _bucketed("relative-buckets", name, says, change)


Buckets = Callable[[TransformerConfig, np.ndarray, bool], np.ndarray]
"""The bucket of each distance; whether both directions are told apart."""


def _bucketed(identity: str, variant: str, says: str, buckets: Buckets, value: float | None = None) -> Fault:
    return Fault(identity, variant, says, patch=partial(_with_buckets, buckets), value=value)


def _with_buckets(buckets: Buckets, state: WalkState, site: str, value: Value) -> Value:
    stack = site.split(".")[0]
    table = state.parameters[f"{stack}.relative_bias.weight"]
    bias = table[buckets(state.config, distances_at(state, site), stack == "encoder")]
    return value - bias_at(state, site) + np.moveaxis(bias, -1, 1)


def _other_directions(config: TransformerConfig, distances: np.ndarray, both: bool) -> np.ndarray:
    return relative_buckets(distances, config.relative_buckets, config.relative_max_distance, both=not both)


def _turned_round(config: TransformerConfig, distances: np.ndarray, both: bool) -> np.ndarray:
    return relative_buckets(-distances, config.relative_buckets, config.relative_max_distance, both=both)


def _up_to(most: int, config: TransformerConfig, distances: np.ndarray, both: bool) -> np.ndarray:
    return relative_buckets(distances, config.relative_buckets, most, both=both)


def _all_exact(config: TransformerConfig, distances: np.ndarray, both: bool) -> np.ndarray:
    offset, count, near = _halved(config, distances, both)
    return offset + np.minimum(near, count - 1)


def _fewer_exact(config: TransformerConfig, distances: np.ndarray, both: bool) -> np.ndarray:
    return _shared_by(np.trunc, max(1, _halved(config, distances, both)[1] // 4), config, distances, both)


def _rounded(
    whole: Callable[[np.ndarray], np.ndarray], config: TransformerConfig, distances: np.ndarray, both: bool
) -> np.ndarray:
    return _shared_by(whole, _halved(config, distances, both)[1] // 2, config, distances, both)


def _shared_by(
    whole: Callable[[np.ndarray], np.ndarray],
    exact: int,
    config: TransformerConfig,
    distances: np.ndarray,
    both: bool,
) -> np.ndarray:
    """Buckets of which the first are `exact`, a share of one being made `whole`."""
    offset, count, near = _halved(config, distances, both)
    share = np.log(np.maximum(near, exact) / exact) / math.log(config.relative_max_distance / exact)
    shared = np.minimum(exact + whole(share * (count - exact)).astype(int), count - 1)
    return offset + np.where(near < exact, near, shared)


def _halved(config: TransformerConfig, distances: np.ndarray, both: bool) -> tuple[np.ndarray, int, np.ndarray]:
    """Where the buckets of each direction begin, how many there are of one, and how far each distance is."""
    count = config.relative_buckets // 2 if both else config.relative_buckets
    near = np.abs(distances) if both else np.maximum(-distances, 0)
    return count * (distances > 0) * both, count, near


def _alibi_faults(config: TransformerConfig) -> Iterator[Fault]:
    for name, slopes, says in (
        ("2^(−8 i / heads)", _naive_slopes, "slopes are 2^(−8 i / heads), though heads are no power of two"),
        ("in order", _ordered_slopes, "slopes are in order of size, not those of the power of two first"),
        ("from 0", _slopes_from_0, "the first slope is 1: heads are counted from 0"),
        ("of the power above", _slopes_above, "slopes are the first of the power of two above the heads"),
        ("turned round", _reversed_slopes, "slopes are in the opposite order"),
    ):
        if not np.array_equal(slopes(config.num_heads), alibi_slopes(config.num_heads)):
            yield Fault("alibi-slopes", name, says, patch=partial(_sloped, slopes))


def _sloped(slopes: Callable[[int], np.ndarray], state: WalkState, site: str, value: Value) -> Value:
    away = np.abs(distances_at(state, site))[:, None] * slopes(state.config.num_heads)[:, None, None]
    return value - bias_at(state, site) - away.astype(value.dtype)


def _naive_slopes(heads: int) -> np.ndarray:
    return 2.0 ** (-8 / heads * np.arange(1, heads + 1))


def _slopes_from_0(heads: int) -> np.ndarray:
    return 2.0 ** (-8 / heads * np.arange(heads))


def _ordered_slopes(heads: int) -> np.ndarray:
    return -np.sort(-alibi_slopes(heads))


def _slopes_above(heads: int) -> np.ndarray:
    return _naive_slopes(2 ** math.ceil(math.log2(heads)))[:heads]


def _reversed_slopes(heads: int) -> np.ndarray:
    return alibi_slopes(heads)[::-1]


def _bias_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """What is done with the bias, whatever it is."""
    kind = config.positions
    yield Fault(f"{kind}-missing", "missing", "scores have no bias of distances", patch=partial(_weighted, _nothing))
    says = "the bias of distances is taken off scores, not added to them"
    if kind == "alibi":
        says = "distances are added to scores, not taken off them"
    yield Fault(f"{kind}-sign", "turned", says, patch=partial(_weighted, _negative))
    if kind == "relative" and int(site.split(".")[2]) > 0:
        says = "the first layer alone has the bias of distances, which all have"
        yield Fault("relative-missing", "behind the first layer", says, patch=partial(_weighted, _nothing))
    if not math.isclose(config.score_scale, 1):
        says = "the bias of distances is scaled as scores are"
        yield Fault(f"{kind}-scaled", "scaled", says, patch=partial(_weighted, lambda config: config.score_scale))


def _weighted(by: Callable[[TransformerConfig], float], state: WalkState, site: str, value: Value) -> Value:
    bias = bias_at(state, site)
    assert bias is not None
    return value + bias * value.dtype.type(by(state.config) - 1)


def _nothing(config: TransformerConfig) -> float:
    return 0.0


def _negative(config: TransformerConfig) -> float:
    return -1.0


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    yield NumericFault(_is_rotated, [10.0**power for power in range(9)], partial(other_base, config))
    if config.rotary_scaling != "none":
        grid = [config.rotary_factor * 2.0**power for power in range(-6, 7)]
        yield NumericFault(_is_rotated, grid, partial(other_factor, config))


def _is_rotated(site: str) -> bool:
    return site.endswith("_rotated")
