"""Faults of rotary positions: the layout, the angles and the direction of the rotation of queries and keys."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from transparity.config import PER_LAYER, RopeLayout, TransformerConfig
from transparity_conformance.catalogue.fault import Fault, NumericFault, Settings, WalkState
from transparity_conformance.catalogue.sites import Value, parameters_of
from transparity_conformance.oracle.budgets import epsilon, rounded_to
from transparity_conformance.oracle.masks import own_config, split
from transparity_numpy.attention import query_key_norm
from transparity_numpy.positions import rotary_frequencies, rotate, yarn_ends

ROTATED = {"query_rotated": "queries", "key_rotated": "keys"}

Field = Callable[[TransformerConfig], Any]
"""From a configuration of any size to the value of one changed field."""

KNOWN_BASES = (10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 1000.0)

OTHER_PAIRS: dict[RopeLayout, RopeLayout] = {"interleaved": "halves", "halves": "interleaved"}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    tap = split(site)[2]
    if tap in ROTATED:
        own = own_config(config, site)
        yield from _of_other_layers(config, own)
        yield from _rotary_faults(own)
        yield from _of_one(own, tap)


def _rotary_faults(config: TransformerConfig) -> Iterator[Fault]:
    """Faults of queries and keys alike."""
    other = OTHER_PAIRS[config.rope_layout]
    apart = {"interleaved": "neighbours", "halves": "half the features apart"}
    description = f"the features that are rotated together are {apart[other]}, not {apart[config.rope_layout]}"
    yield _turned("rotary-layout", other, description, {"rope_layout": lambda c: OTHER_PAIRS[c.rope_layout]})
    yield from (other_base(config, base) for base in KNOWN_BASES if base != config.rope_theta)
    for right, name, description, fields in SCALINGS:
        if config.rotary_scaling in right:
            yield _turned("rotary-scaling", name, description, fields)
    yield from _scaling_faults(config)
    if config.rotary_scaling in ("llama3", "yarn") and config.rotary_factor != 1:
        for name, (share, description) in SHARES_KEPT.items():
            mixed = {"frequencies": partial(_with_share, share)}
            yield Fault("rotary-scaling", name, description, formula=_turn, settings=mixed)
    yield from _partial_faults(config)
    yield Fault("rotary-missing", "both", "queries and keys are not rotated", patch=_not_turned)
    yield Fault(
        "rotary-direction",
        "both",
        "queries and keys are rotated in the opposite direction",
        formula=_turn,
        settings={"sign": -1},
    )
    for kind in ("bfloat16", "float16"):
        for part, text in IN_HALF.items():
            settings = {"in_half": (kind, part)}
            yield Fault("rotary-precision", f"{part} in {kind}", text.format(kind), formula=_turn, settings=settings)
    yield from _position_faults(config)
    if config.key_value_rank:
        description = "the first features of each head are rotated, not the last, which are those with positions"
        yield Fault("rotary-part", "first", description, formula=_turn, settings={"first": True})
    if config.query_key_norm:
        description = "queries and keys are rotated before they are normalised"
        yield Fault("query-key-norm", "behind the rotation", description, patch=_normed_behind)


def _scaling_faults(config: TransformerConfig) -> Iterator[Fault]:
    """Faults of the attention factor, of YaRN's transition and of LongRoPE's two sets of factors."""
    factor = config.rotary_attention_factor
    if factor != 1:
        for name, (value, description) in ATTENTION_FACTORS.items():
            fields: dict[str, Field] = {"rotary_attention_factor": value}
            yield _turned("rotary-attention-factor", name, description, fields)
    if config.rotary_scaling == "yarn":
        for name, (value, description) in TRANSITIONS.items():
            yield Fault("rotary-scaling", name, description, formula=_turn, settings={"frequencies": value})
        description = f"the transition is {'not ' * config.rotary_truncate}cut to whole pairs of features"
        yield _turned("rotary-scaling", "cut", description, {"rotary_truncate": lambda c: not c.rotary_truncate})
    if config.rotary_scaling == "longrope":
        for name, (description, fields) in LENGTHS.items():
            yield _turned("rotary-length", name, description, fields)


def _position_faults(config: TransformerConfig) -> Iterator[Fault]:
    """Faults of far positions: they are rounded, or beyond the end of a table."""
    for kind in ("bfloat16", "float16"):
        exact = int(2 / epsilon(kind))
        if config.max_length > exact:
            description = f"positions are rounded to {kind}, which has not every whole number beyond {exact:,}"
            settings = {"positions": partial(_rounded_positions, kind)}
            yield Fault("rotary-precision", f"positions in {kind}", description, formula=_turn, settings=settings)
    for size in (2**power for power in range(SHORTEST_TABLE, (config.max_length - 1).bit_length())):
        for name, (beyond, says) in BEYOND.items():
            description = f"positions from {size:,} on {says}"
            settings = {"positions": partial(beyond, size)}
            yield Fault("rotary-position", f"{name} at {size}", description, formula=_turn, settings=settings)


def _rounded_positions(kind: str, positions: np.ndarray) -> np.ndarray:
    return rounded_to(positions.astype(np.float64), kind)


SHORTEST_TABLE = 7
"""The power of two of the fewest rows of a table that ends too early."""

BEYOND: dict[str, tuple[Callable[[int, np.ndarray], np.ndarray], str]] = {
    "the last row": (
        lambda size, positions: np.minimum(positions, size - 1),
        "are the last of a table, which is too short",
    ),
    "begun again": (lambda size, positions: positions % size, "begin at 0 again"),
}
"""What ports do with positions beyond the end of a table."""


def _partial_faults(config: TransformerConfig) -> Iterator[Fault]:
    for name, share in SHARES.items():
        if (dim := _turned_dim(share, config)) != config.rotated_dim:
            description = f"{dim} of a head's {config.head_dim} features are rotated, not {config.rotated_dim}"
            yield _turned("rotary-partial", name, description, {"rotary_dim": partial(_turned_dim, share)})
    if config.rotated_dim < config.head_dim:
        description = (
            f"angles are position / base^(2 i / {config.head_dim}), of all features of a head, not of the rotated ones"
        )
        settings = {"frequencies": _over_all_features}
        yield Fault("rotary-partial", "angles of all", description, formula=_turn, settings=settings)


def _of_one(config: TransformerConfig, tap: str) -> Iterator[Fault]:
    """Faults of the queries alone or of the keys alone."""
    which = ROTATED[tap]
    yield Fault("rotary-missing", which, f"{which} are not rotated", patch=_not_turned)
    says = f"{which} are rotated in the opposite direction"
    yield Fault("rotary-direction", which, says, formula=_turn, settings={"sign": -1})
    for shift, word in ((1, "later"), (-1, "earlier")):
        description = f"{which} are rotated as if they were one position {word}"
        settings = {"shift": shift}
        yield Fault(
            "rotary-position", f"{which} {shift:+d}", description, formula=_turn, settings=settings, value=shift
        )


IN_HALF = {
    "frequencies": "the frequencies of the rotary angles are rounded to {}",
    "angles": "the rotary angles are computed in {}",
    "tables": "the cosines and sines of the rotary angles are rounded to {}",
    "everything": "the rotary angles, their cosines and their sines are computed in {}",
}
"""The parts of the rotation that ports keep in half precision, as a model that is cast as a whole does."""

SHARES = {"all": 1.0, "half": 0.5, "a quarter": 0.25}
"""The share of a head's features that ports turn."""


def _of_other_layers(config: TransformerConfig, own: TransformerConfig) -> Iterator[Fault]:
    """Faults of a layer that is rotated as layers of another kind are."""
    others = {kind: other for kind, other in config.layer_kinds.items() if other.positions == "rotary"}
    for kind, other in others.items():
        for part, fields in PARTS.items():
            different = [name for name in fields if getattr(other, name) != getattr(own, name)]
            if different:
                says = f"this layer is rotated with the {part} of the layers of {kind}"
                taken = {"as_kind": (kind, fields)}
                yield Fault("rotary-layers", f"{part} of {kind}", says, formula=_turn, settings=taken)


SCALING = tuple(name for name in PER_LAYER if name.startswith("rotary_"))

PARTS = {"angles": ("rope_theta", *SCALING), "base": ("rope_theta",), "scaling": SCALING}
"""The fields that ports mistake for those of another kind of layer, together or alone."""


def _turned_dim(share: float, config: TransformerConfig) -> int:
    return max(2, int(share * config.head_dim) // 2 * 2)


SCALED = ("linear", "llama3", "yarn", "longrope")

SCALINGS: tuple[tuple[tuple[str, ...], str, str, dict[str, Field]], ...] = (
    (SCALED, "left out", "the rotary scaling is missing", {"rotary_scaling": lambda c: "none"}),
    (
        ("llama3", "yarn"),
        "linear",
        "all angles are scaled, not only the slow ones",
        {"rotary_scaling": lambda c: "linear"},
    ),
    (
        ("linear", "llama3", "yarn"),
        "multiplied",
        "angles are multiplied by the factor",
        {"rotary_factor": lambda c: 1 / c.rotary_factor},
    ),
    (("linear",), "llama3", "only the slow angles are scaled, not all", {"rotary_scaling": lambda c: "llama3"}),
    (("yarn",), "llama3", "angles are scaled as Llama 3.1's, not as YaRN's", {"rotary_scaling": lambda c: "llama3"}),
    (
        ("llama3", "yarn"),
        "max_length",
        "the original length of the scaling is max_length",
        {"rotary_original_length": lambda c: c.max_length},
    ),
    (
        ("yarn",),
        "usual limits",
        "the transition of the scaling is from 32 turns to 1, whatever is configured",
        {"rotary_high_frequency": lambda c: 32.0, "rotary_low_frequency": lambda c: 1.0},
    ),
)
"""The right scalings, the variant, its description and the changed fields."""


ATTENTION_FACTORS: dict[str, tuple[Field, str]] = {
    "left out": (lambda c: 1.0, "the attention factor of the rotary scaling is missing"),
    "twice": (lambda c: c.rotary_attention_factor**2, "the attention factor of the rotary scaling is applied twice"),
    "divided": (lambda c: 1 / c.rotary_attention_factor, "the rotated features are divided by the attention factor"),
    "its root": (
        lambda c: c.rotary_attention_factor**0.5,
        "the root of the attention factor is applied, as if it were one of the scores",
    ),
    "by the formula": (
        lambda c: 0.1 * math.log(max(c.rotary_factor, 1)) + 1,
        "the attention factor is 0.1 · ln(factor) + 1, whatever is configured",
    ),
}
"""What ports take for the attention factor."""


LENGTHS: dict[str, tuple[str, dict[str, Field]]] = {
    "always long": (
        "the factors of long sequences are used at every length",
        {"rotary_short_factors": lambda c: c.rotary_long_factors},
    ),
    "always short": (
        "the factors of short sequences are used at every length",
        {"rotary_long_factors": lambda c: c.rotary_short_factors},
    ),
    "exchanged": (
        "the factors of short and of long sequences are exchanged",
        {
            "rotary_long_factors": lambda c: c.rotary_short_factors,
            "rotary_short_factors": lambda c: c.rotary_long_factors,
        },
    ),
    "one early": (
        "the factors of long sequences are used from the original length on, not beyond it",
        {"rotary_original_length": lambda c: max(c.rotary_original_length - 1, 1)},
    ),
}
"""What ports take for LongRoPE's switch between two sets of factors."""


def _with_ends(change: Callable[[float, float], tuple[float, float]], config: TransformerConfig) -> np.ndarray:
    """YaRN's frequencies, with other ends of the transition."""
    first, last = change(*yarn_ends(config))
    share = 1 - np.clip((np.arange(config.rotated_dim // 2) - first) / (last - first), 0, 1)
    plain = _plain(config)
    mixed: np.ndarray = (1 - share) * plain / config.rotary_factor + share * plain
    return mixed


TRANSITIONS: dict[str, tuple[Callable[[TransformerConfig], np.ndarray], str]] = {
    "ends exchanged": (
        partial(_with_ends, lambda first, last: (last, first)),
        "the two ends of the transition between scaled and plain angles are exchanged",
    ),
    "from the first pair": (
        partial(_with_ends, lambda first, last: (0.0, last)),
        "the transition between plain and scaled angles begins at the first pair of features",
    ),
}
"""YaRN's frequencies as ports compute them."""


SHARES_KEPT: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str]] = {
    "mixed the other way round": (
        lambda share: np.where((share > 0) & (share < 1), 1 - share, share),
        "between the slow and the fast angles, the scaled and the plain ones are mixed the other way round",
    ),
    "a step": (np.floor, "all angles but the fast ones are scaled, without a smooth part"),
}
"""From the share of the plain frequency in that of Llama 3.1 to another one."""


def _plain(config: TransformerConfig) -> np.ndarray:
    return rotary_frequencies(dataclasses.replace(config, rotary_scaling="none"))


def _with_share(change: Callable[[np.ndarray], np.ndarray], config: TransformerConfig) -> np.ndarray:
    right = rotary_frequencies(config)
    plain = _plain(config)
    slowed = plain / config.rotary_factor
    mixed: np.ndarray = slowed + change(np.round((right - slowed) / (plain - slowed), 12)) * (plain - slowed)
    return mixed


def other_base(config: TransformerConfig, base: float) -> Fault:
    description = f"the base of the rotary angles is {base:.6g} instead of {config.rope_theta:g}"
    return _turned("rotary-base", f"{base:.6g}", description, {"rope_theta": lambda _: base}, base)


def other_factor(config: TransformerConfig, factor: float) -> Fault:
    description = f"the factor of the rotary scaling is {factor:.6g} instead of {config.rotary_factor:g}"
    return _turned("rotary-scaling", f"factor {factor:.6g}", description, {"rotary_factor": lambda _: factor}, factor)


def other_attention_factor(config: TransformerConfig, factor: float) -> Fault:
    description = f"the attention factor is {factor:.6g} instead of {config.rotary_attention_factor:g}"
    fields: dict[str, Field] = {"rotary_attention_factor": lambda _: factor}
    return _turned("rotary-attention-factor", f"factor {factor:.6g}", description, fields, factor)


def _turned(
    identity: str, variant: str, description: str, fields: Mapping[str, Field], value: float | None = None
) -> Fault:
    return Fault(identity, variant, description, formula=_turn, settings=fields, value=value)


def _before_rotation(state: WalkState, site: str) -> Value:
    name = site.removesuffix("_rotated")
    return state.taps[f"{name}_norm" if state.config.query_key_norm else name]


def _turn(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    own = own_config(state.config, site)
    if "as_kind" in settings:
        kind, fields = settings["as_kind"]
        other = state.config.layer_kinds[kind]
        own = dataclasses.replace(own, **{name: getattr(other, name) for name in fields})
    return rotated(settings, own, _before_rotation(state, site))


ROTATION = ("first", "sign", "shift", "frequencies", "in_half", "positions", "as_kind")
"""The settings that are no fields of the configuration."""


def rotated(settings: Settings, config: TransformerConfig, x: Value) -> Value:
    """Queries or keys as `config` rotates them, but for `settings`."""
    is_latent = config.key_value_rank is not None and not settings.get("first")
    config = dataclasses.replace(config, query_rank=None, key_value_rank=None, value_head_dim=None)
    if "rotary_dim" in settings:
        config = config.with_sizes(rotary_dim=settings["rotary_dim"](config))
    fields = {name: value(config) for name, value in settings.items() if name not in (*ROTATION, "rotary_dim")}
    config = dataclasses.replace(config, **fields)
    kind, part = settings.get("in_half", ("", ""))
    if x.shape[2] > config.rotary_original_length:
        config = dataclasses.replace(config, rotary_short_factors=config.rotary_long_factors)
    frequencies = settings.get("frequencies", rotary_frequencies)(config)
    if part in ("frequencies", "angles", "everything"):
        frequencies = rounded_to(frequencies, kind)
    positions = settings.get("positions", lambda at: at)(np.arange(x.shape[2]) + settings.get("shift", 0))
    angles = settings.get("sign", 1) * positions[:, None] * frequencies
    if part in ("angles", "everything"):
        angles = rounded_to(angles, kind)
    tables = [config.rotary_attention_factor * np.cos(angles), config.rotary_attention_factor * np.sin(angles)]
    if part in ("tables", "everything"):
        tables = [rounded_to(table, kind) for table in tables]
    both, begin = (tables[0].astype(x.dtype), tables[1].astype(x.dtype)), 0
    if is_latent:  # whose last features are rotated
        begin = x.shape[-1] - config.rotated_dim
    return np.concatenate([x[..., :begin], rotate(x[..., begin:], both, config.rope_layout)], axis=-1)


def _over_all_features(config: TransformerConfig) -> np.ndarray:
    pairs, kept = config.rotated_dim // 2, config.rotary_scaling == "longrope"
    scaling = rotary_frequencies(config) / _plain(config) if kept else 1.0
    whole = dataclasses.replace(config, rotary_dim=None, rotary_scaling="none" if kept else config.rotary_scaling)
    all_features: np.ndarray = rotary_frequencies(whole)[:pairs] * scaling
    return all_features


def _not_turned(state: WalkState, site: str, value: Value) -> Value:
    return _before_rotation(state, site)


def _normed_behind(state: WalkState, site: str, value: Value) -> Value:
    name = site.removesuffix("_rotated")
    turned = rotated({}, own_config(state.config, site), state.taps[name])
    return query_key_norm(state.config, parameters_of(state, f"{name}_norm"), turned)


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    for own in dict.fromkeys(config.layer_kinds.values()):
        is_site = partial(_is_rotated, config, own)
        slowest = 1 if own.rotary_scaling == "yarn" else 0  # whose base is greater than 1
        yield NumericFault(is_site, [10.0**power for power in range(slowest, 9)], partial(other_base, own))
        if own.rotary_attention_factor != 1:
            grid = [own.rotary_attention_factor * 1.1**power for power in range(-8, 9)]
            yield NumericFault(is_site, grid, partial(other_attention_factor, own))
        if own.rotary_scaling not in ("none", "longrope"):
            grid = [own.rotary_factor * 2.0**power for power in range(-6, 7)]
            yield NumericFault(is_site, grid, partial(other_factor, own))


def _is_rotated(config: TransformerConfig, own: TransformerConfig, site: str) -> bool:
    """Return whether queries or keys are rotated there, in a layer that is configured as `own`."""
    return site.endswith("_rotated") and own_config(config, site) == own
