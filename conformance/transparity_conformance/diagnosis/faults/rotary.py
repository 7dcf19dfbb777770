"""Faults of rotary positions: the layout, the angles and the direction of the rotation of queries and keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import RopeLayout, TransformerConfig
from transparity_conformance.diagnosis.fault import Fault, NumericFault, WalkState
from transparity_conformance.diagnosis.faults.sites import Value, parameters_of, split
from transparity_conformance.oracle.budgets import rounded_to
from transparity_numpy.normalization import head_norm
from transparity_numpy.positions import rotary_frequencies, rotate

ROTATED = {"query_rotated": "queries", "key_rotated": "keys"}

Fields = Callable[[TransformerConfig], dict[str, Any]]
"""From a configuration of any size to its changed fields."""

KNOWN_BASES = (10_000.0, 500_000.0, 1_000_000.0, 100_000.0, 1000.0)

OTHER_PAIRS: dict[RopeLayout, RopeLayout] = {"interleaved": "halves", "halves": "interleaved"}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    tap = split(site)[2]
    if tap in ROTATED:
        yield from _rotary_faults(config)
        yield from _of_one(config, tap)


def _rotary_faults(config: TransformerConfig) -> Iterator[Fault]:
    """Faults of queries and keys alike."""
    other = OTHER_PAIRS[config.rope_layout]
    apart = {"interleaved": "neighbours", "halves": "half the features apart"}
    description = f"the features that are rotated together are {apart[other]}, not {apart[config.rope_layout]}"
    yield _turned("rotary-layout", other, description, lambda c: {"rope_layout": OTHER_PAIRS[c.rope_layout]})
    yield from (other_base(config, base) for base in KNOWN_BASES if base != config.rope_theta)
    for right, name, description, fields in SCALINGS:
        if config.rotary_scaling in right:
            yield _turned("rotary-scaling", name, description, fields)
    yield from _partial_faults(config)
    yield Fault("rotary-missing", "both", "queries and keys are not rotated", patch=_not_turned)
    yield Fault(
        "rotary-direction",
        "both",
        "queries and keys are rotated in the opposite direction",
        patch=partial(_turn, {}, sign=-1),
    )
    for kind in ("bfloat16", "float16"):
        for part, text in IN_HALF.items():
            in_half = partial(_turned_in_half, kind, part)
            yield Fault("rotary-precision", f"{part} in {kind}", text.format(kind), patch=in_half)
    if config.query_key_norm:
        description = "queries and keys are rotated before they are normalised"
        yield Fault("query-key-norm", "behind the rotation", description, patch=_normed_behind)


def _partial_faults(config: TransformerConfig) -> Iterator[Fault]:
    for name, share in SHARES.items():
        if (dim := _turned_dim(config, share)) != config.rotated_dim:
            description = f"{dim} of a head's {config.head_dim} features are rotated, not {config.rotated_dim}"
            yield _turned("rotary-partial", name, description, partial(_sharing, share))
    if config.rotated_dim < config.head_dim:
        description = (
            f"angles are position / base^(2 i / {config.head_dim}), of all features of a head, not of the rotated ones"
        )
        patch = partial(_turn, {}, frequencies=_over_all_features)
        yield Fault("rotary-partial", "angles of all", description, patch=patch)


def _of_one(config: TransformerConfig, tap: str) -> Iterator[Fault]:
    """Faults of the queries alone or of the keys alone."""
    which = ROTATED[tap]
    yield Fault("rotary-missing", which, f"{which} are not rotated", patch=_not_turned)
    yield Fault(
        "rotary-direction", which, f"{which} are rotated in the opposite direction", patch=partial(_turn, {}, sign=-1)
    )
    for shift, word in ((1, "later"), (-1, "earlier")):
        description = f"{which} are rotated as if they were one position {word}"
        patch = partial(_turn, {}, shift=shift)
        yield Fault("rotary-position", f"{which} {shift:+d}", description, patch=patch, value=shift)


IN_HALF = {
    "frequencies": "the frequencies of the rotary angles are rounded to {}",
    "angles": "the rotary angles are computed in {}",
    "tables": "the cosines and sines of the rotary angles are rounded to {}",
    "everything": "the rotary angles, their cosines and their sines are computed in {}",
}
"""The parts of the rotation that ports keep in half precision, as a model that is cast as a whole does."""

SHARES = {"all": 1.0, "half": 0.5, "a quarter": 0.25}
"""The share of a head's features that ports turn."""


def _turned_dim(config: TransformerConfig, share: float) -> int:
    return max(2, int(share * config.head_dim) // 2 * 2)


def _sharing(share: float, config: TransformerConfig) -> dict[str, Any]:
    return {"rotary_dim": _turned_dim(config, share)}


SCALINGS: tuple[tuple[tuple[str, ...], str, str, Fields], ...] = (
    (("linear", "llama3"), "left out", "the rotary scaling is missing", lambda c: {"rotary_scaling": "none"}),
    (("llama3",), "linear", "all angles are scaled, not only the slow ones", lambda c: {"rotary_scaling": "linear"}),
    (
        ("linear", "llama3"),
        "multiplied",
        "angles are multiplied by the factor",
        lambda c: {"rotary_factor": 1 / c.rotary_factor},
    ),
    (("linear",), "llama3", "only the slow angles are scaled, not all", lambda c: {"rotary_scaling": "llama3"}),
)
"""The right scalings, the variant, its description and the changed fields."""


def other_base(config: TransformerConfig, base: float) -> Fault:
    description = f"the base of the rotary angles is {base:.6g} instead of {config.rope_theta:g}"
    return _turned("rotary-base", f"{base:.6g}", description, lambda _: {"rope_theta": base}, base)


def other_factor(config: TransformerConfig, factor: float) -> Fault:
    description = f"the factor of the rotary scaling is {factor:.6g} instead of {config.rotary_factor:g}"
    return _turned("rotary-scaling", f"factor {factor:.6g}", description, lambda _: {"rotary_factor": factor}, factor)


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


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    yield NumericFault(_is_rotated, [10.0**power for power in range(9)], partial(other_base, config))
    if config.rotary_scaling != "none":
        grid = [config.rotary_factor * 2.0**power for power in range(-6, 7)]
        yield NumericFault(_is_rotated, grid, partial(other_factor, config))


def _is_rotated(site: str) -> bool:
    return site.endswith("_rotated")
