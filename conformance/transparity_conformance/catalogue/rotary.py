"""Faults of rotary positions: the layout, the angles and the direction of the rotation."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np

from transparity.config import FIELD_TYPES, PER_LAYER, RopeLayout, TransformerConfig
from transparity_conformance.catalogue.fault import (
    Fault,
    FaultRow,
    Number,
    NumericFault,
    Patch,
    Settings,
    WalkState,
    fault,
    made,
    row,
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
    apart = APART[OTHER_PAIRS[own.rope_layout]], APART[own.rope_layout]
    yield from made(LAYOUTS, own, _turn, other=OTHER_PAIRS[own.rope_layout], apart=apart)
    yield from BASE.usual(own)
    yield from made(SCALINGS, own, _turn, no="not " * own.rotary_truncate)
    for name, share in SHARES.items():
        if (dim := _turned_dim(share, own)) != own.rotated_dim:
            words, turned_dim = {"name": name, "dim": dim, "c": own}, partial(_turned_dim, share)
            yield fault("rotary-partial", "{name}", words=words, formula=_turn, rotary_dim=turned_dim)
    yield from made(ROTATIONS, own, _turn)
    yield from _position_faults(own)
    yield from made(PLACES, own, _turn)
    yield from made(OF_ONE, own, _turn, which=ROTATED[tap], other=OTHER_PAIRS[own.rope_layout], apart=apart)


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
"""Fields that a port may take from another kind of layer."""


def _turned_dim(share: float, config: TransformerConfig) -> int:
    return max(2, int(share * config.head_dim) // 2 * 2)


def _with_ends(change: Callable[[float, float], tuple[float, float]], config: TransformerConfig) -> np.ndarray:
    first, last = change(*yarn_ends(config))
    share = 1 - np.clip((np.arange(config.rotated_dim // 2) - first) / (last - first), 0, 1)
    plain = _plain(config)
    return (1 - share) * plain / config.rotary_factor + share * plain


def _plain(config: TransformerConfig) -> np.ndarray:
    return rotary_frequencies(dataclasses.replace(config, rotary_scaling="none"))


def _with_share(change: Callable[[np.ndarray], np.ndarray], config: TransformerConfig) -> np.ndarray:
    right = rotary_frequencies(config)
    plain = _plain(config)
    slowed = plain / config.rotary_factor
    return slowed + change(np.round((right - slowed) / (plain - slowed), 12)) * (plain - slowed)


def _before_rotation(state: WalkState, site: str, value: Value) -> Value:
    name = site.removesuffix("_rotated")
    return state.taps[f"{name}_norm" if state.config.query_key_norm else name]


def _turn(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    own = own_config(state.config, site)
    if "as_kind" in settings:
        kind, fields = settings["as_kind"]
        other = state.config.layer_kinds[kind]
        own = _with_fields(own, **{name: getattr(other, name) for name in fields})
    name = site.removesuffix("_rotated")
    if "before_norm" in settings:
        return query_key_norm(
            state.config, parameters_of(state, f"{name}_norm"), rotated(settings, own, state.taps[name])
        )
    return rotated(settings, own, _before_rotation(state, site, value))


@functools.lru_cache(maxsize=2**8)  # making a configuration takes longer than a rotation
def _with_fields(config: TransformerConfig, **fields: Any) -> TransformerConfig:
    return dataclasses.replace(config, **fields)


def rotated(settings: Settings, config: TransformerConfig, x: Value) -> Value:
    """Rotate queries or keys `x`, with changed `settings`."""
    is_latent = config.kv_lora_rank is not None and not settings.get("first")
    config = _with_fields(config, q_lora_rank=None, kv_lora_rank=None, value_head_dim=None)
    if "rotary_dim" in settings:
        config = config.with_sizes(rotary_dim=settings["rotary_dim"](config))
    fields = {name: value for name, value in settings.items() if name in FIELD_TYPES and name != "rotary_dim"}
    config = _with_fields(config, **{name: each(config) if callable(each) else each for name, each in fields.items()})
    kind, part = settings.get("in_half", ("", ""))
    if x.shape[2] > config.rotary_original_length:
        config = _with_fields(config, rotary_short_factors=config.rotary_long_factors)
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


def _with_other_tables(x: Value, tables: tuple[Value, Value], layout: Literal["interleaved", "halves"]) -> Value:
    """Pair features as in `layout`, but multiply them by cosines and sines in the order of the other layout."""
    cos, sin = (np.repeat(each, 2, -1) if layout == "halves" else np.concatenate([each] * 2, -1) for each in tables)
    part, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    turned = rotate(part, (np.zeros_like(tables[0]), np.ones_like(tables[1])), layout)
    return np.concatenate([part * cos + turned * sin, rest], axis=-1)


def _with_other_pairs(x: Value, tables: tuple[Value, Value], layout: Literal["interleaved", "halves"]) -> Value:
    """Rotate the pairs of the other layout, but return them in the order of `layout`."""
    rows, columns = (2, -1) if layout == "interleaved" else (-1, 2)
    part, rest = np.split(x, [2 * tables[0].shape[-1]], axis=-1)
    pairs = part.reshape(*part.shape[:-1], rows, columns).swapaxes(-1, -2)
    return np.concatenate([rotate(pairs.reshape(part.shape), tables, layout), rest], axis=-1)


def _over_all_features(config: TransformerConfig) -> np.ndarray:
    pairs, kept = config.rotated_dim // 2, config.rotary_scaling == "longrope"
    scaling = rotary_frequencies(config) / _plain(config) if kept else 1.0
    whole = dataclasses.replace(config, rotary_dim=None, rotary_scaling="none" if kept else config.rotary_scaling)
    return rotary_frequencies(whole)[:pairs] * scaling


def _with_factor_in_base(config: TransformerConfig) -> np.ndarray:
    larger = dataclasses.replace(config, rope_theta=config.rope_theta * config.rotary_factor)
    return rotary_frequencies(config) / _plain(config) * _plain(larger)


def _with_usual_ends(config: TransformerConfig) -> np.ndarray:
    ends = yarn_ends(dataclasses.replace(config, rope_theta=10_000.0))
    return _with_ends(lambda first, last: ends, config)


IN_HALF = ("frequencies", "angles", "tables", "everything")
"""Steps that ports compute in half precision, for example after a cast of the whole model."""


BASE = Number("rotary-base", "rope_theta", "the base of the rotary angles is {v:.6g}{instead}", _turn)
FACTOR = Number(
    "rotary-scaling", "rotary_factor", "the factor of the rotary scaling is {v:.6g}{instead}", _turn, "factor {v:.6g}"
)
INSTEAD = "the attention factor is {v:.6g}{instead}"
ATTENTION_FACTOR = Number("rotary-attention-factor", "rotary_attention_factor", INSTEAD, _turn, "factor {v:.6g}")

MANY: Callable[[TransformerConfig], bool] = lambda c: c.rotated_dim > 2

LAYOUTS = (
    row("rotary-layout", "{other}", rope_layout=lambda c: OTHER_PAIRS[c.rope_layout]),
    row(
        "rotary-layout",
        "halves of the head",
        lambda c: c.rope_layout == "halves" and c.rotated_dim < c.head_dim and not c.kv_lora_rank,
        across=True,
    ),
    row("rotary-layout", "tables of {other}", MANY, turn=_with_other_tables),
)


def _scaled(*kinds: str) -> Callable[[TransformerConfig], bool]:
    return lambda c: c.rotary_scaling in kinds


LINEAR, YARN, LONGROPE = _scaled("linear"), _scaled("yarn"), _scaled("longrope")
BY_PARTS = _scaled("llama3", "yarn")
"""Methods that reduce only low frequencies."""


HAS_FACTOR: Callable[[TransformerConfig], bool] = lambda c: c.rotary_attention_factor != 1


def _factor(variant: str, value: Callable[[TransformerConfig], float]) -> FaultRow:
    return row("rotary-attention-factor", variant, HAS_FACTOR, rotary_attention_factor=value)


def _mixed(variant: str, share: Callable[[np.ndarray], np.ndarray]) -> FaultRow:
    when = lambda c: BY_PARTS(c) and c.rotary_factor != 1
    return row("rotary-scaling", variant, when, frequencies=partial(_with_share, share))


_scaling = partial(row, "rotary-scaling")
_length = partial(row, "rotary-length", when=LONGROPE)
SCALINGS = (
    _scaling("left out", lambda c: c.rotary_scaling != "none", rotary_scaling="none"),
    _scaling("linear", BY_PARTS, rotary_scaling="linear"),
    _scaling("multiplied", _scaled("linear", "llama3", "yarn"), rotary_factor=lambda c: 1 / c.rotary_factor),
    _scaling("llama3", LINEAR, rotary_scaling="llama3"),
    _scaling("llama3", YARN, says="angles are scaled as in Llama 3.1, not as in YaRN", rotary_scaling="llama3"),
    _scaling("max_length", BY_PARTS, rotary_original_length=lambda c: c.max_length),
    _scaling("usual limits", YARN, rotary_fast_turns=32.0, rotary_slow_turns=1.0),
    _factor("left out", lambda c: 1.0),
    _factor("twice", lambda c: c.rotary_attention_factor**2),
    _factor("divided", lambda c: 1 / c.rotary_attention_factor),
    _factor("its root", lambda c: c.rotary_attention_factor**0.5),
    row("rotary-attention-factor", "cosines only", HAS_FACTOR, factors=lambda factor: (factor, 1.0)),
    row("rotary-attention-factor", "sines only", HAS_FACTOR, factors=lambda factor: (1.0, factor)),
    _factor("by the formula", lambda c: 0.1 * math.log(max(c.rotary_factor, 1)) + 1),
    _scaling("ends exchanged", YARN, frequencies=partial(_with_ends, lambda first, last: (last, first))),
    _scaling("from the first pair", YARN, frequencies=partial(_with_ends, lambda first, last: (0.0, last))),
    _scaling("cut", YARN, rotary_truncate=lambda c: not c.rotary_truncate),
    _length("always long", rotary_short_factors=lambda c: c.rotary_long_factors),
    _length("always short", rotary_long_factors=lambda c: c.rotary_short_factors),
    _length(
        "exchanged",
        rotary_long_factors=lambda c: c.rotary_short_factors,
        rotary_short_factors=lambda c: c.rotary_long_factors,
    ),
    _length("one early", rotary_original_length=lambda c: max(c.rotary_original_length - 1, 1)),
    _mixed("mixed the other way round", lambda share: np.where((share > 0) & (share < 1), 1 - share, share)),
    _mixed("a step", np.floor),
    _scaling("the base, too", YARN, frequencies=_with_factor_in_base),
    _scaling("limits of the usual base", lambda c: YARN(c) and c.rope_theta != 10_000.0, frequencies=_with_usual_ends),
)
ROTATIONS = (
    row("rotary-partial", "angles of all", lambda c: c.rotated_dim < c.head_dim, frequencies=_over_all_features),
    row("rotary-missing", "both", patch=_before_rotation),
    row("rotary-direction", "both", sign=-1),
    row("rotary-position", "heads", lambda c: not c.kv_lora_rank, along=1),
    row("rotary-position", "rolled in the call", moved=lambda c, positions: np.roll(positions, 1)),
    row("rotary-position", "rolled in a table", moved=lambda c, positions: (positions - 1) % c.max_length),
    *(row("rotary-precision", f"{part} in {kind}", in_half=(kind, part)) for kind in HALF for part in IN_HALF),
)
PLACES = (
    row("rotary-part", "first", lambda c: bool(c.kv_lora_rank), first=True),
    row("rotary-part", "last", lambda c: not c.kv_lora_rank and c.rotated_dim < c.head_dim, last=True),
    row("query-key-norm", "behind the rotation", lambda c: c.query_key_norm, before_norm=True),
)
OF_ONE = (
    row("rotary-layout", "{other} of {which}", MANY, rope_layout=lambda c: OTHER_PAIRS[c.rope_layout]),
    row("rotary-layout", "{other} of {which}, reordered", MANY, turn=_with_other_pairs),
    row("rotary-missing", "{which}", patch=_before_rotation),
    row("rotary-direction", "{which}", sign=-1),
    row("rotary-position", "{which} +1", shift=1, value=1),
    row("rotary-position", "{which} -1", shift=-1, value=-1),
)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    for own in dict.fromkeys(config.layer_kinds.values()):
        is_site = lambda site, own=own: site.endswith("_rotated") and own_config(config, site) == own
        slowest = 1 if own.rotary_scaling == "yarn" else 0  # YaRN needs a base greater than 1.
        yield BASE.fitted(own, is_site, 10.0, range(slowest, 9), 1)
        if own.rotary_attention_factor != 1:
            yield ATTENTION_FACTOR.fitted(own, is_site, 1.1, range(-8, 9))
        if own.rotary_scaling not in ("none", "longrope"):
            yield FACTOR.fitted(own, is_site, 2.0, range(-6, 7))
