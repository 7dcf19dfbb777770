"""Faults in attention: the scale, softcap and temperature of scores, and the order and grouping of heads."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import (
    Fault,
    Number,
    NumericFault,
    Settings,
    WalkState,
    factors,
    fault,
    made,
    other_factors,
    with_fields,
)
from transparity_conformance.catalogue.masks import scores_at, sinks_at
from transparity_conformance.catalogue.position_bias import bias_at
from transparity_conformance.catalogue.rotary import rotated
from transparity_conformance.catalogue.sites import Value, apply_linear, normalized_and_rotated, sublayer_input
from transparity_conformance.oracle.budgets import FITTED_WIDTH
from transparity_conformance.oracle.undetermined import own_config, right_mask, split
from transparity_numpy.mixers.attention import attention_scores, attention_weights, merge_heads, repeat_heads
from transparity_numpy.positions.in_attention import query_temperature


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if not sublayer.endswith("attention"):
        return
    heads = config.key_value_heads if tap in ("key", "value") else config.num_heads
    is_grouped = 1 < config.key_value_heads < config.num_heads
    if tap == "scores":
        for name, scale in other_factors("attention-scale", config, config.score_scale).items():
            yield scaled(config, scale, name)
        if sublayer == "self_attention" and own_config(config, site).positions != config.positions:
            yield fault("rotary-layers", "rotated", formula=attended, rotated=True)
        yield from made("softcaps", config, attended)
        yield from CAP.usual(config)
    if tap == "weights" and config.attention_softcap is not None:
        yield fault("attention-cap", "behind the mask", patch=_capped_behind_mask)
    if tap in ("scores", "context") and is_grouped:
        yield from made("groups of heads", config, attended, alone="keys" if tap == "scores" else "values")
    if tap in ("query", "key", "value") and heads > 1:
        yield from made("splits of heads", config, attended)
        yield from made("splits and merges of heads", config, attended)
    if tap == "context" and heads > 1:
        yield from made("merges of heads", config, attended)
        yield from made("splits and merges of heads", config, attended)


def named_scale(scale: float) -> str:
    """Return the name of a factor 1/√n, such as `1/√48` for 0.1443; return an empty text for other factors."""
    width = round(scale**-2) if scale > 0 else 0
    return f"1/√{width}" if width > 1 and math.isclose(width, scale**-2, rel_tol=FITTED_WIDTH) else ""


def scaled(config: TransformerConfig, scale: float, named: str) -> Fault:
    """Return the fault that scores are multiplied by `scale`. For models of other sizes, the formula with the name
    `named` computes the factor."""
    right = config.score_scale
    kind = {"head_dim": "1/√head_dim", "embed_dim": "1/√embed_dim", "none": ""}[config.attention_scale]
    if config.attention_multiplier != 1:
        kind = f"{kind} · {config.attention_multiplier:g}" if kind else named_scale(right)
    by = f"{named} ({scale:.4g})" if named else f"{scale:.6g}"
    instead = f"{kind} ({right:.4g})" if kind else f"{right:.6g}"
    difference = f"scaled by {by} instead of {instead}" if scale != 1 else f"not scaled by {instead}"
    scores = "scores, without their position bias," if config.has_score_bias else "scores"
    description = f"your {scores} are {scale / right:.4f} × the reference's: {difference}"
    # If scores are masked before they are scaled, a wrong scale also changes masked scores. This has an effect only if
    # the mask value is close to zero.
    also = ("weights",) if config.mask_order == "before-scale" and 0 > config.mask_value > -1e3 else ()
    change: dict[str, Any] = {
        "value": scale,
        "also_patched": also,
        "scale": factors("attention-scale").get(named, lambda config: scale),
    }
    return fault("attention-scale", named or f"{scale:.6g}", says=description, formula=attended, **change)


def attended(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Recompute a tap with another scale, softcap or temperature, or with other ways to split or merge heads."""
    tap = site.rpartition(".")[2]
    if tap == "weights":
        ratio = settings["scale"](state.config) / state.config.score_scale
        masked = state.config.masked_score * ratio
        return attention_weights(scores_at(state, site), right_mask(state, site), masked, sinks_at(state, site))
    if tap == "scores":
        return _scored(settings, state, site).astype(value.dtype)
    if tap == "context":
        scope = site.rpartition(".")[0]
        heads = state.taps[f"{scope}.weights"] @ _shared(settings, state.taps[f"{scope}.value"], state.config)
        return settings["merge"](heads, state.config) if "merge" in settings else merge_heads(heads)
    return _split(settings["split"], state, site, value) if "split" in settings else value


def _scored(settings: Settings, state: WalkState, site: str) -> Value:
    config, scope = with_fields(state.config, settings), site.rpartition(".")[0]
    query, key = normalized_and_rotated(state, scope, "query"), normalized_and_rotated(state, scope, "key")
    if settings.get("rotated"):
        query, key = rotated({}, config, query), rotated({}, config, key)
    query = _sharpened(settings, config, site, query)
    key = _shared(settings, key, config)
    scale = settings["scale"](config) if "scale" in settings else config.score_scale
    cap, bias = config.attention_softcap, bias_at(state, site)
    if "capping" not in settings:
        return attention_scores(query, key, scale, cap, bias)
    if cap is None:
        raise KeyError("softcap")
    scores = settings["capping"](query @ key.swapaxes(-2, -1), scale, cap)
    return scores if bias is None else scores + bias


def _sharpened(settings: Settings, config: TransformerConfig, site: str, query: Value) -> Value:
    if split(site)[1] != "self_attention":
        return query
    positions, own = np.arange(query.shape[2])[np.newaxis], own_config(config, site)
    right = functools.partial(query_temperature, own, dtype=query.dtype)
    factor = settings.get("temperature", lambda own, config, positions, right: right(positions=positions))
    found = factor(own, config, positions, right)
    return query if found is None else (query * found).astype(query.dtype)


def _shared(settings: Settings, x: Value, config: TransformerConfig) -> Value:
    return (tiled_heads if settings.get("tiled") else repeat_heads)(x, config.num_heads)


def tiled_heads(x: Value, heads: int) -> Value:
    """Repeat heads in the order 0, 1, 0, 1; the right order is 0, 0, 1, 1."""
    return np.tile(x, (1, heads // x.shape[1], 1, 1))


CAP = Number("attention-cap", "attention_softcap", "scores are softcapped at {v:.6g}{instead}", attended)


def _capped_behind_mask(state: WalkState, site: str, value: Value) -> Value:
    cap, masked_score = state.config.attention_softcap, state.config.masked_score
    assert cap is not None
    masked = cap * math.tanh(masked_score / cap)
    return attention_weights(scores_at(state, site), right_mask(state, site), masked, sinks_at(state, site))


def view(x: Value, num_heads: int) -> Value:
    batch, length, features = x.shape
    return x.reshape(batch, num_heads, length, features // num_heads)


def interleaved(x: Value, num_heads: int) -> Value:
    batch, length, features = x.shape
    return x.reshape(batch, length, features // num_heads, num_heads).transpose(0, 3, 1, 2)


def merged_interleaved(heads: Value, config: TransformerConfig) -> Value:
    return heads.transpose(0, 2, 3, 1).reshape(heads.shape[0], heads.shape[2], -1)


def merged_by_members(heads: Value, config: TransformerConfig) -> Value:
    """Merge heads in a wrong order: the first heads of all groups, then all second heads, and so on."""
    batch, count, length, width = heads.shape
    groups = config.key_value_heads
    members = heads.reshape(batch, groups, count // groups, length, width).transpose(0, 3, 2, 1, 4)
    return members.reshape(batch, length, -1)


def _split(wrong: Callable[[Value, int], Value], state: WalkState, site: str, value: Value) -> Value:
    scope, sublayer, role = split(site)
    config = state.config
    if config.kv_lora_rank and role == "key":
        own = config.projected_key_dim
        split_own = wrong(merge_heads(value[..., :own]), config.num_heads)
        return np.concatenate([split_own, value[..., own:]], axis=-1)
    if config.projection == "full":
        return wrong(merge_heads(value), config.key_value_heads if role in ("key", "value") else config.num_heads)
    return apply_linear(state, site, wrong(sublayer_input(state, scope, sublayer, role), config.num_heads))


def temperature_faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    """Yield faults of the query temperature, a factor of queries that grows with the position."""
    _, sublayer, tap = split(site)
    if tap != "scores" or sublayer != "self_attention":
        return
    own = own_config(config, site)
    yield from made("temperatures", own, attended, other=1 - own.query_temperature_first)
    others = {kind: each.query_temperature for kind, each in config.layer_kinds.items()}
    for kind, other in others.items():
        if other != own.query_temperature:
            words, factor = {"kind": kind, "other": other}, partial(_with_temperature, other)
            yield fault("query-temperature-layers", "{kind}", words=words, formula=attended, temperature=factor)
    if len(set(others.values())) == 2:
        yield fault("query-temperature-layers", "exchanged", formula=attended, temperature=_exchanged)


def _with_temperature(
    temperature: float, own: TransformerConfig, config: TransformerConfig, positions: np.ndarray, right: Any
) -> Any:
    return query_temperature(dataclasses.replace(own, query_temperature=temperature), positions, np.float64)


def _exchanged(own: TransformerConfig, config: TransformerConfig, positions: np.ndarray, right: Any) -> Any:
    others = {each.query_temperature for each in config.layer_kinds.values()} - {own.query_temperature}
    return _with_temperature(max(others), own, config, positions, right)


def smooth_temperature(own: TransformerConfig, config: TransformerConfig, positions: np.ndarray, right: Any) -> Any:
    pieces = (positions + own.query_temperature_first) / own.query_temperature_length
    return (1 + own.query_temperature * np.log1p(pieces))[:, None, :, None]


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    is_site: Callable[[str], bool] = lambda site: site.endswith(".scores")
    grid = [config.score_scale * 2.0**power for power in range(-8, 9)]
    yield NumericFault(is_site, grid, lambda scale: scaled(config, scale, named_scale(scale)))
    if config.attention_softcap is not None:
        yield CAP.fitted(config, is_site, 2.0, range(-4, 7))
