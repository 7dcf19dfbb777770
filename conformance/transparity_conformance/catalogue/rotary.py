"""Faults of rotary positions: the layout, the angles and the direction of the rotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import numpy as np

from transparity.config import PER_LAYER, RopeLayout, TransformerConfig
from transparity_conformance.catalogue.fault import (
    Fault,
    Number,
    NumericFault,
    Patch,
    Settings,
    WalkState,
    fault,
    made,
    with_fields,
)
from transparity_conformance.catalogue.sites import Value, parameters_of
from transparity_conformance.oracle.budgets import HALF, epsilon, rounded_to
from transparity_conformance.oracle.undetermined import own_config, split
from transparity_numpy.norms.heads import query_key_norm
from transparity_numpy.rotary.plain import rotate
from transparity_numpy.rotary.tables import rotary_frequencies
from transparity_numpy.rotary.yarn import yarn_ends

ROTATED = {"query_rotated": "queries", "key_rotated": "keys"}

OTHER_PAIRS: dict[RopeLayout, RopeLayout] = {"interleaved": "halves", "halves": "interleaved"}
APART = {"interleaved": "neighbors", "halves": "half the features apart"}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    own = own_config(config, site)
    # A port may also rotate the values, except in latent attention.
    if (sublayer, tap) == ("self_attention", "value") and own.positions == "rotary" and own.kv_lora_rank is None:
        turned: Patch = lambda state, site, value: rotated({}, own_config(state.config, site), value)
        yield fault("rotary-values", "rotated", patch=turned)
    if tap not in ROTATED:
        return
    yield from _of_other_layers(config, own)
    other = OTHER_PAIRS[own.rope_layout]
    apart = APART[other], APART[own.rope_layout]
    yield from made("rotary layouts", own, _turn, other=other, apart=apart)
    yield from BASE.usual(own)
    yield from made("rotary scalings", own, _turn, no="not " * own.rotary_truncate)
    for name, share in SHARES.items():
        if (dim := _turned_dim(share, own)) != own.rotated_dim:
            words, turned_dim = {"name": name, "dim": dim, "c": own}, partial(_turned_dim, share)
            yield fault("rotary-partial", "{name}", words=words, formula=_turn, rotary_dim=turned_dim)
    yield from made("rotations", own, _turn)
    yield from _position_faults(own)
    yield from made("rotary features", own, _turn)
    yield from made("one rotation", own, _turn, which=ROTATED[tap], other=other, apart=apart)


def _position_faults(config: TransformerConfig) -> Iterator[Fault]:
    for kind in HALF:
        exact = int(2 / epsilon(kind))
        if config.max_length > exact:
            words = {"kind": kind, "exact": exact}
            moved = lambda config, positions, kind=kind: rounded_to(positions.astype(np.float64), kind)
            yield fault("rotary-precision", "positions in {kind}", words=words, formula=_turn, moved=moved)
    for size in (2**power for power in range(SHORTEST_TABLE, (config.max_length - 1).bit_length())):
        for name, (beyond, how) in BEYOND.items():
            says, moved = f"positions from {size:,} on {how}", partial(beyond, size)
            yield fault("rotary-position", f"{name} at {size}", says=says, formula=_turn, moved=moved)


SHORTEST_TABLE = 7
"""The base-2 logarithm of the smallest number of rows of a position table."""

BEYOND: dict[str, tuple[Callable[[int, TransformerConfig, np.ndarray], np.ndarray], str]] = {
    "the last row": (
        lambda size, config, positions: np.minimum(positions, size - 1),
        "use the last row of a table that is too short",
    ),
    "begun again": (lambda size, config, positions: positions % size, "begin at 0 again"),
}
"""Positions that ports use beyond their table: (table size, configuration, positions) → positions."""

SHARES = {"all": 1.0, "half": 0.5, "a quarter": 0.25}


def _of_other_layers(config: TransformerConfig, own: TransformerConfig) -> Iterator[Fault]:
    for kind, other in config.layer_kinds.items():
        for part, fields in PARTS.items() if other.positions == "rotary" else ():
            if any(getattr(other, name) != getattr(own, name) for name in fields):
                words = {"part": part, "kind": kind}
                yield fault("rotary-layers", "{part} of {kind}", words=words, formula=_turn, as_kind=(kind, fields))


SCALING = tuple(name for name in PER_LAYER if name.startswith("rotary_"))

PARTS = {"angles": ("rope_theta", *SCALING), "base": ("rope_theta",), "scaling": SCALING}
"""For each part of the rotary settings, the fields that a port may take from another kind of layer."""


def _turned_dim(share: float, config: TransformerConfig) -> int:
    return max(2, int(share * config.head_dim) // 2 * 2)


def with_ends(change: Callable[[float, float], tuple[float, float]], config: TransformerConfig) -> np.ndarray:
    first, last = change(*yarn_ends(config))
    share = 1 - np.clip((np.arange(config.rotated_dim // 2) - first) / (last - first), 0, 1)
    plain = _plain(config)
    return (1 - share) * plain / config.rotary_factor + share * plain


def _plain(config: TransformerConfig) -> np.ndarray:
    return rotary_frequencies(dataclasses.replace(config, rotary_scaling="none"))


def with_share(change: Callable[[np.ndarray], np.ndarray], config: TransformerConfig) -> np.ndarray:
    right = rotary_frequencies(config)
    plain = _plain(config)
    slowed = plain / config.rotary_factor
    return slowed + change(np.round((right - slowed) / (plain - slowed), 12)) * (plain - slowed)


def before_rotation(state: WalkState, site: str, value: Value) -> Value:
    name = site.removesuffix("_rotated")
    return state.taps[f"{name}_norm" if state.config.query_key_norm else name]


def _turn(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    own = own_config(state.config, site)
    if "as_kind" in settings:
        kind, fields = settings["as_kind"]
        other = state.config.layer_kinds[kind]
        own = with_fields(own, {name: getattr(other, name) for name in fields})
    name = site.removesuffix("_rotated")
    if "before_norm" in settings:
        return query_key_norm(
            state.config, parameters_of(state, f"{name}_norm"), rotated(settings, own, state.taps[name])
        )
    return rotated(settings, own, before_rotation(state, site, value))


def rotated(settings: Settings, config: TransformerConfig, x: Value) -> Value:
    """Rotate queries or keys `x`, with changed `settings`."""
    is_latent = config.kv_lora_rank is not None and not settings.get("first")
    config = with_fields(config, dict.fromkeys(("q_lora_rank", "kv_lora_rank", "value_head_dim")))
    if "rotary_dim" in settings:
        config = config.with_sizes(rotary_dim=settings["rotary_dim"](config))
    config = with_fields(config, {name: value for name, value in settings.items() if name != "rotary_dim"})
    kind, part = settings.get("in_half", ("", ""))
    if x.shape[2] > config.rotary_original_length:
        config = with_fields(config, {"rotary_short_factors": config.rotary_long_factors})
    frequencies = settings.get("frequencies", rotary_frequencies)(config)
    if part in ("frequencies", "angles", "everything"):
        frequencies = rounded_to(frequencies, kind)
    along = settings.get("along", 2)
    positions = np.arange(x.shape[along]) + settings.get("shift", 0)
    positions = settings["moved"](config, positions) if "moved" in settings else positions
    angles = settings.get("sign", 1) * np.expand_dims(positions, [*range(1, 4 - along)]) * frequencies
    if part in ("angles", "everything"):
        angles = rounded_to(angles, kind)
    factors = settings.get("factors", lambda factor: (factor, factor))(config.rotary_attention_factor)
    tables = [factor * table for factor, table in zip(factors, (np.cos(angles), np.sin(angles)), strict=True)]
    if part in ("tables", "everything"):
        tables = [rounded_to(table, kind) for table in tables]
    both, begin = (tables[0].astype(x.dtype), tables[1].astype(x.dtype)), 0
    if is_latent or settings.get("last"):  # latent attention rotates the last features
        begin = x.shape[-1] - config.rotated_dim
    if settings.get("across"):
        first, middle = np.arange(config.rotated_dim // 2), x.shape[-1] // 2
        order = [*first, *first + middle, *np.setdiff1d(np.arange(x.shape[-1]), [first, first + middle])]
        return rotate(x[..., order], both, config.rope_layout)[..., np.argsort(order)]
    turn = settings.get("turn", rotate)
    return np.concatenate([x[..., :begin], turn(x[..., begin:], both, config.rope_layout)], axis=-1)


def with_other_tables(x: Value, tables: tuple[Value, Value], layout: Literal["interleaved", "halves"]) -> Value:
    """Pair features as in `layout`, but multiply the pairs by cosines and sines in the order of the other layout."""
    cos, sin = (np.repeat(each, 2, -1) if layout == "halves" else np.concatenate([each] * 2, -1) for each in tables)
    part, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    turned = rotate(part, (np.zeros_like(tables[0]), np.ones_like(tables[1])), layout)
    return np.concatenate([part * cos + turned * sin, rest], axis=-1)


def with_other_pairs(x: Value, tables: tuple[Value, Value], layout: Literal["interleaved", "halves"]) -> Value:
    """Rotate the pairs of features of the other layout, but return the features in the order of `layout`."""
    rows, columns = (2, -1) if layout == "interleaved" else (-1, 2)
    part, rest = np.split(x, [2 * tables[0].shape[-1]], axis=-1)
    pairs = part.reshape(*part.shape[:-1], rows, columns).swapaxes(-1, -2)
    return np.concatenate([rotate(pairs.reshape(part.shape), tables, layout), rest], axis=-1)


def over_all_features(config: TransformerConfig) -> np.ndarray:
    pairs, kept = config.rotated_dim // 2, config.rotary_scaling == "longrope"
    scaling = rotary_frequencies(config) / _plain(config) if kept else 1.0
    whole = dataclasses.replace(config, rotary_dim=None, rotary_scaling="none" if kept else config.rotary_scaling)
    return rotary_frequencies(whole)[:pairs] * scaling


def with_factor_in_base(config: TransformerConfig) -> np.ndarray:
    larger = dataclasses.replace(config, rope_theta=config.rope_theta * config.rotary_factor)
    return rotary_frequencies(config) / _plain(config) * _plain(larger)


def with_usual_ends(config: TransformerConfig) -> np.ndarray:
    ends = yarn_ends(dataclasses.replace(config, rope_theta=10_000.0))
    return with_ends(lambda first, last: ends, config)


BASE = Number("rotary-base", "rope_theta", "the base of the rotary angles is {v:.6g}{instead}", _turn)
FACTOR = Number(
    "rotary-scaling", "rotary_factor", "the factor of the rotary scaling is {v:.6g}{instead}", _turn, "factor {v:.6g}"
)
INSTEAD = "the attention factor is {v:.6g}{instead}"
ATTENTION_FACTOR = Number("rotary-attention-factor", "rotary_attention_factor", INSTEAD, _turn, "factor {v:.6g}")


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    for own in dict.fromkeys(config.layer_kinds.values()):
        is_site = lambda site, own=own: site.endswith("_rotated") and own_config(config, site) == own
        slowest = 1 if own.rotary_scaling == "yarn" else 0  # YaRN needs a base greater than 1.
        yield BASE.fitted(own, is_site, 10.0, range(slowest, 9), 1)
        if own.rotary_attention_factor != 1:
            yield ATTENTION_FACTOR.fitted(own, is_site, 1.1, range(-8, 9))
        if own.rotary_scaling not in ("none", "longrope"):
            yield FACTOR.fitted(own, is_site, 2.0, range(-6, 7))
