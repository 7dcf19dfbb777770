"""Faults in attention: its scale and cap, how heads are cut and put together, and which of them share a key."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, NumericFault, Settings, WalkState
from transparity_conformance.catalogue.masks import scores_at, sinks_at
from transparity_conformance.catalogue.position_bias import bias_at
from transparity_conformance.catalogue.rotary import rotated
from transparity_conformance.catalogue.sites import Value, apply_linear, normalized_and_rotated, sublayer_input
from transparity_conformance.oracle.masks import own_config, right_mask, split
from transparity_numpy.arithmetic.softcap import apply_softcap
from transparity_numpy.attention import (
    attention_scores,
    attention_weights,
    merge_heads,
    repeat_heads,
)
from transparity_numpy.positions import query_temperature


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    if not sublayer.endswith("attention"):
        return
    if tap == "scores":
        for name, scale in SCALES.items():
            if not math.isclose(scale(config), config.score_scale, rel_tol=1e-9):
                yield scaled(config, scale(config), name)
    if tap == "scores" and sublayer == "self_attention" and own_config(config, site).positions != config.positions:
        says = "queries and keys of this layer are rotated, although it has no positions"
        yield Fault("rotary-layers", "rotated", says, formula=attended, settings={"rotated": True})
    if tap in ("scores", "weights") and config.attention_softcap is not None:
        yield from _cap_faults(config, tap)
    elif tap == "scores":
        yield from (other_cap(config, cap) for cap in KNOWN_CAPS)
    if tap in ("scores", "context") and config.key_value_heads < config.num_heads and config.key_value_heads > 1:
        yield from _grouping_faults(tap)
    if tap in ("query", "key", "value") and heads_at(config, tap) > 1:
        for name, (wrong, description) in SPLITS.items():
            kind = "head-split" if name == "view" else "head-order"
            yield Fault(kind, f"split by {name}", description, formula=attended, settings={"split": wrong})
    if tap == "context" and config.num_heads > 1:
        for name, (merge, description) in MERGES.items():
            kind = "head-split" if name == "view" else "head-order"
            yield Fault(kind, f"merged by {name}", description, formula=attended, settings={"merge": merge})
    if tap == "context" and 1 < config.key_value_heads < config.num_heads:
        description = "the members of the groups of heads are merged in turn: the first of every group, then the second"
        by_members = {"merge": partial(merged_by_members, config.key_value_heads)}
        yield Fault("head-order", "merged by members", description, formula=attended, settings=by_members)
    if tap in ("query", "key", "value", "context") and heads_at(config, tap) > 1:
        description = (
            "heads are interleaved, (head_dim, heads) instead of (heads, head_dim), in splitting and in merging"
        )
        both = {"split": interleaved, "merge": MERGES["interleaved"][0]}
        yield Fault("head-order", "split and merged interleaved", description, formula=attended, settings=both)


def heads_at(config: TransformerConfig, tap: str) -> int:
    """The number of heads at a tap."""
    return config.key_value_heads if tap in ("key", "value") else config.num_heads


SCALES: dict[str, Callable[[TransformerConfig], float]] = {
    "1/√head_dim": lambda config: config.head_dim**-0.5,
    "1/√(head_dim − rotary_dim)": lambda config: (config.head_dim - (config.rotary_dim or 0)) ** -0.5,
    "1/√rotary_dim": lambda config: (config.rotary_dim or config.head_dim) ** -0.5,
    "1/√embed_dim": lambda config: config.embed_dim**-0.5,
    "1 (none)": lambda config: 1.0,
    "1/head_dim": lambda config: 1 / config.head_dim,
    "the scale twice": lambda config: config.score_scale**2,
    "1/embed_dim": lambda config: 1 / config.embed_dim,
    "1/√num_heads": lambda config: config.num_heads**-0.5,
    "the scale's inverse": lambda config: 1 / config.score_scale,
    "1/√(head_dim + 1)": lambda config: (config.head_dim + 1) ** -0.5,
    "1/√(embed_dim + 1)": lambda config: (config.embed_dim + 1) ** -0.5,
    "1/√max_length": lambda config: config.max_length**-0.5,
}
"""Factors by which ports multiply scores, the likeliest first."""


def named_scale(config: TransformerConfig, scale: float, tolerance: float = 1e-4) -> str:
    """`1/√48` for 0.1443, if the number has a name."""
    if scale > 0 and math.isclose(round(scale**-2), scale**-2, rel_tol=tolerance) and round(scale**-2) > 1:
        return f"1/√{round(scale**-2)}"
    return ""


def scaled(config: TransformerConfig, scale: float, named: str) -> Fault:
    """Scores multiplied by `scale`; a named factor is computed again for a model of another size."""
    right = config.score_scale
    kind = {"head_dim": "1/√head_dim", "embed_dim": "1/√embed_dim", "none": "1"}[config.attention_scale]
    kind += f" · {config.attention_multiplier:g}" if config.attention_multiplier != 1 else ""
    by = f"{named} ({scale:.4g})" if named else f"{scale:.6g}"
    description = f"your scores are {scale / right:.4f} × ours: scaled by {by} instead of {kind} ({right:.4g})"
    settings = {"scale": SCALES.get(named, lambda config: scale)}
    # What hides scores before they are scaled is scaled with them; that shows if it hides by half.
    also = ("weights",) if config.mask_order == "before-scale" and 0 > config.mask_value > -1e3 else ()
    variant = named or f"{scale:.6g}"
    fault = Fault("attention-scale", variant, description, formula=attended, settings=settings, value=scale)
    return dataclasses.replace(fault, also_patched=also)


def attended(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Queries, keys and values `split`, scores with a `scale`, a `cap`, another `capping`, `rotated` or `tiled` keys,
    and the context of `tiled` values, put together by `merge`."""
    tap = site.rpartition(".")[2]
    if tap == "weights":
        ratio = settings["scale"](state.config) / state.config.score_scale
        masked = state.config.masked_score * ratio
        return attention_weights(scores_at(state, site), right_mask(state, site), masked, sinks_at(state, site))
    if tap == "scores":
        return _scored(settings, state, site).astype(value.dtype)
    if tap == "context":
        return _merged(settings, state, site)
    return _split(settings["split"], state, site, value) if "split" in settings else value


def _scored(settings: Settings, state: WalkState, site: str) -> Value:
    config, scope = state.config, site.rpartition(".")[0]
    query, key = normalized_and_rotated(state, scope, "query"), normalized_and_rotated(state, scope, "key")
    if settings.get("rotated"):
        query, key = rotated({}, config, query), rotated({}, config, key)
    query = _sharpened(settings, config, site, query)
    key = _shared(settings, key, config)
    scale = settings["scale"](config) if "scale" in settings else config.score_scale
    cap, bias = settings.get("cap", config.attention_softcap), bias_at(state, site)
    if "capping" not in settings:
        return attention_scores(query, key, scale, cap, bias)
    if cap is None:
        raise KeyError("softcap")
    scores = settings["capping"](query @ key.swapaxes(-2, -1), scale, cap)
    return scores if bias is None else scores + bias


def _sharpened(settings: Settings, config: TransformerConfig, site: str, query: Value) -> Value:
    """The query with its temperature by position, or with another `temperature`."""
    if split(site)[1] != "self_attention":
        return query
    positions, own = np.arange(query.shape[2])[np.newaxis], own_config(config, site)
    right = functools.partial(query_temperature, own, dtype=query.dtype)
    factor = settings.get("temperature", lambda own, config, positions, right: right(positions=positions))
    found = factor(own, config, positions, right)
    return query if found is None else (query * found).astype(query.dtype)


def _shared(settings: Settings, x: Value, config: TransformerConfig) -> Value:
    """Keys or values of every head."""
    if settings.get("tiled"):
        return np.tile(x, (1, config.num_heads // config.key_value_heads, 1, 1))
    return repeat_heads(x, config.num_heads)


KNOWN_CAPS = (50.0, 30.0, 20.0, 10.0)
"""Usual softcaps of scores and logits."""


def _cap_faults(config: TransformerConfig, tap: str) -> Iterator[Fault]:
    if tap == "weights":
        description = "scores are softcapped after the mask, which sets masked ones to −cap"
        yield Fault("attention-cap", "behind the mask", description, patch=_capped_behind_mask)
        return
    yield _capped("missing", "scores have no softcap", None)
    for cap in KNOWN_CAPS:
        if cap != config.attention_softcap:
            yield other_cap(config, cap)
    for name, (change, description) in CAPS.items():
        yield Fault("attention-cap", name, description, formula=attended, settings={"capping": change})


def other_cap(config: TransformerConfig, cap: float) -> Fault:
    right = ", and should not be" if config.attention_softcap is None else f" instead of {config.attention_softcap:g}"
    description = f"scores are softcapped at {cap:.6g}{right}"
    return _capped(f"{cap:.6g}", description, cap)


def _capped(variant: str, description: str, cap: float | None) -> Fault:
    return Fault("attention-cap", variant, description, formula=attended, settings={"cap": cap}, value=cap)


CAPS: dict[str, tuple[Callable[[Value, float, float], Value], str]] = {
    "clipped": (
        lambda products, scale, cap: np.clip(products * scale, -cap, cap),
        "scores are clipped at the cap instead of softcapped by tanh",
    ),
    "not scaled back": (
        lambda products, scale, cap: np.tanh(products * scale / cap),
        "scores are tanh(scores / cap), which is not multiplied by the cap again",
    ),
    "before the scale": (
        lambda products, scale, cap: apply_softcap(products, cap) * scale,
        "scores are softcapped before they are scaled",
    ),
}


def _capped_behind_mask(state: WalkState, site: str, value: Value) -> Value:
    cap, hidden = state.config.attention_softcap, state.config.masked_score
    assert cap is not None
    masked = cap * math.tanh(hidden / cap)
    return attention_weights(scores_at(state, site), right_mask(state, site), masked, sinks_at(state, site))


def _grouping_faults(tap: str) -> Iterator[Fault]:
    description = "are assigned to the heads in turn (0, 1, 0, 1) instead of to consecutive heads (0, 0, 1, 1)"
    alone = "keys" if tap == "scores" else "values"
    # at one tap both are the same; the first is what is said of it
    for variant, which in ((f"{alone} tiled", alone), ("tiled", "keys and values")):
        yield Fault("head-grouping", variant, f"{which} {description}", formula=attended, settings={"tiled": True})


def view(x: Value, num_heads: int) -> Value:
    batch, length, features = x.shape
    return x.reshape(batch, num_heads, length, features // num_heads)


def interleaved(x: Value, num_heads: int) -> Value:
    batch, length, features = x.shape
    return x.reshape(batch, length, features // num_heads, num_heads).transpose(0, 3, 1, 2)


INTERLEAVED = "heads are interleaved, (head_dim, heads) instead of (heads, head_dim)"

SPLITS: dict[str, tuple[Callable[[Value, int], Value], str]] = {
    "view": (view, "features are split into heads by a view, without the transpose"),
    "interleaved": (
        interleaved,
        f"{INTERLEAVED}, when they are split",
    ),
}

MERGES: dict[str, tuple[Callable[[Value], Value], str]] = {
    "view": (
        lambda heads: heads.reshape(heads.shape[0], heads.shape[2], -1),
        "heads are merged by a view, without the transpose",
    ),
    "interleaved": (
        lambda heads: heads.transpose(0, 2, 3, 1).reshape(heads.shape[0], heads.shape[2], -1),
        f"{INTERLEAVED}, when they are merged",
    ),
}


def merged_by_members(groups: int, heads: Value) -> Value:
    """The first head of every group, then the second of every group, instead of group by group."""
    batch, count, length, width = heads.shape
    members = heads.reshape(batch, groups, count // groups, length, width).transpose(0, 3, 2, 1, 4)
    return members.reshape(batch, length, -1)


def _split(wrong: Callable[[Value, int], Value], state: WalkState, site: str, value: Value) -> Value:
    scope, sublayer, role = split(site)
    if state.config.key_value_rank and role == "key":
        own = state.config.projected_key_dim
        split_own = wrong(merge_heads(value[..., :own]), state.config.num_heads)
        return np.concatenate([split_own, value[..., own:]], axis=-1)
    if state.config.projection == "full":
        return wrong(merge_heads(value), heads_at(state.config, role))
    x = sublayer_input(state, scope, sublayer, role)
    return apply_linear(state, site, wrong(x, state.config.num_heads))


def _merged(settings: Settings, state: WalkState, site: str) -> Value:
    scope = site.rpartition(".")[0]
    merge = settings.get("merge", merge_heads)
    return merge(state.taps[f"{scope}.weights"] @ _shared(settings, state.taps[f"{scope}.value"], state.config))


def numeric_faults(config: TransformerConfig) -> Iterator[NumericFault]:
    grid = [config.score_scale * 2.0**power for power in range(-8, 9)]
    yield NumericFault(_is_scores, grid, lambda scale: scaled(config, scale, named_scale(config, scale)))
    if config.attention_softcap is not None:
        grid = [config.attention_softcap * 2.0**power for power in range(-4, 7)]
        yield NumericFault(_is_scores, grid, partial(other_cap, config))


def _is_scores(site: str) -> bool:
    return site.endswith(".scores")
