"""Faults of feed-forward layers: the activation, the gate, and the experts with their router."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity.taps import ROUTER_CHOSEN
from transparity_conformance.catalogue.fault import (
    OTHER_FACTORS,
    Fault,
    Formula,
    Number,
    Settings,
    WalkState,
    fault,
    made,
    row,
)
from transparity_conformance.catalogue.parameters import Rows, in_groups, repacked
from transparity_conformance.catalogue.sites import Value, apply_linear, parameters_of, sublayer_input
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import own_config, split
from transparity_numpy.activations import ACTIVATIONS as RIGHT
from transparity_numpy.arithmetic.functional import sigmoid, softmax
from transparity_numpy.experts import SCORES, choose, highest, router_weights

_bound = partial(row, "gate-limit", when=lambda c: c.gate_limit is not None)
BOUNDS = (
    _bound("missing", bounded=lambda limit, gate, up: (gate, up)),
    _bound("gate alone", bounded=lambda limit, gate, up: (np.minimum(gate, limit), up)),
    _bound("up alone", bounded=lambda limit, gate, up: (gate, np.clip(up, -limit, limit))),
    _bound("both sides", bounded=lambda limit, gate, up: (np.clip(gate, -limit, limit), np.clip(up, -limit, limit))),
    _bound("above alone", bounded=lambda limit, gate, up: (np.minimum(gate, limit), np.minimum(up, limit))),
)
"""Wrong bounds (swiglu_limit): (limit, gate, up) → (gate, up)."""


CUTS: dict[str, Rows] = {
    "halves": lambda config, gate, up: in_groups(len(gate), gate, up),
    "alternating": lambda config, gate, up: np.argsort(in_groups(len(gate), gate, up)),
}
"""Rows that a port reads as gate and up projection if it expects another packed order."""


def gate_faults(config: TransformerConfig) -> Iterator[Fault]:
    yield from made(GATES, config, activated)
    yield from made(BOUNDS, config, activated)
    if config.gate_limit is not None:
        yield from LIMIT.usual(config)
    for name, order in CUTS.items():
        yield fault("packed-order", f"gate and up, {name}", alter=partial(_cut_as, order))
    if offset := config.up_offset:
        other = partial(fault, "up-offset", words={"c": config}, formula=activated)
        yield other("missing", offset=0.0)
        yield other("subtracted", offset=-offset)
        shifted = lambda function, gate, up: (function(gate) + gate.dtype.type(offset)) * up
        yield other("of the gate", offset=0.0, gated=shifted)


def mixed(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    scope = split(site)[0]
    part, config = f"{scope}.feed_forward", own_config(state.config, site)
    x = _given(settings, state, scope)
    weights = state.taps[f"{scope}.feed_forward.router_weights"]
    hidden = partial(_hidden, settings, state, config)
    total = np.zeros_like(value)
    unpacked: Callable[[Value], Value] = settings.get("unpacked", lambda features: features)
    for expert in range(config.num_experts):
        own, weight = f"{part}.experts.{expert}", weights[..., expert, None]
        given, weight = (x * weight, weight != 0) if settings.get("weighs_input") else (x, weight)
        features = unpacked(hidden(own, unpacked(given)))
        out = apply_linear(state, f"{own}.down", features)
        bias = state.parameters.get(f"{own}.down.bias", 0) * settings.get("bare", 0)
        total = total + weight * (out - bias) + (weight != 0) * bias
    if config.shared_expert_dim:
        shared = state.taps[f"{part}.shared_expert.output"] * value.dtype.type(settings.get("shared", 1))
        if parameters_of(state, f"{part}.shared_expert_gate"):
            shared = shared * settings.get("through", sigmoid)(apply_linear(state, f"{part}.shared_expert_gate", x))
        total = total + shared
    return total.astype(value.dtype)


def _hidden(settings: Settings, state: WalkState, config: TransformerConfig, scope: str, x: Value) -> Value:
    function = settings.get("function", RIGHT[config.activation])
    up = apply_linear(state, f"{scope}.up", x)
    if not config.gated:
        return function(up)
    return gated(settings, config, function, apply_linear(state, f"{scope}.gate", x), up)


def gated(
    settings: Settings, config: TransformerConfig, function: Callable[[Value], Value], gate: Value, up: Value
) -> Value:
    gate, up = settings.get("bounded", bounded)(settings.get("gate_limit", config.gate_limit), gate, up)
    up = up + up.dtype.type(settings.get("offset", config.up_offset))
    return settings.get("gated", lambda function, gate, up: function(gate) * up)(function, gate, up)


def bounded(limit: float | None, gate: Value, up: Value) -> tuple[Value, Value]:
    return (gate, up) if limit is None else (np.minimum(gate, limit), np.clip(up, -limit, limit))


def is_activated(config: TransformerConfig, site: str) -> bool:
    """Return whether a tap is hidden features, or the output of experts."""
    routed = own_config(config, site).num_experts > 0
    return site.endswith(".hidden") or (routed and site.endswith(".feed_forward.output"))


NAMES = {
    "relu": "ReLU",
    "gelu": "GELU (erf)",
    "gelu-tanh": "GELU (tanh)",
    "gelu-quick": "quick GELU (x · sigmoid(1.702 x))",
    "silu": "SiLU",
}

ACTIVATIONS: dict[str, tuple[Callable[[Value], Value], str]] = {
    **{name: (RIGHT[name], says) for name, says in NAMES.items()},
    "tanh": (np.tanh, "tanh"),
    "sigmoid": (sigmoid, "sigmoid"),
    "gelu-doubled": (lambda x: 2 * RIGHT["gelu"](x), "GELU without its factor 1/2"),
    "leaky": (lambda x: np.where(x > 0, x, 0.01 * x), "leaky ReLU (0.01)"),
    "relu6": (lambda x: np.clip(x, 0, 6), "ReLU6"),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), "ELU"),
    "none": (lambda x: x, "no activation"),
}
"""Activation functions that ports use, each with its name in reports."""


def other_activations(
    identity: str, right: str, formula: Formula, where: str = "", missing: str = "none"
) -> Iterator[Fault]:
    """Yield a fault for each activation function except `right`. `where` ends the descriptions; `missing` names the
    fault without an activation function."""
    for name, (function, says) in {**ACTIVATIONS, missing: ACTIVATIONS["none"]}.items():
        if name != right:
            description = f"{says} instead of {ACTIVATIONS[right][1]}{where}"
            yield fault(identity, name, says=description, formula=formula, function=function)


def _given(settings: Settings, state: WalkState, scope: str) -> Value:
    return settings["source"](state, scope) if "source" in settings else sublayer_input(state, scope, "feed_forward")


def activated(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Recompute hidden features or, in a layer with experts, the output."""
    if site.endswith(".output"):
        return mixed(settings, state, site, value)
    x = _given(settings, state, split(site)[0])
    return _hidden(settings, state, state.config, site.removesuffix(".hidden"), x).astype(value.dtype)


GATES = (
    row("gate-swapped", "swapped", gated=lambda function, gate, up: gate * function(up)),
    row("gate-missing", "without gate", gated=lambda function, gate, up: function(up)),
    row("gate-missing", "gate alone", gated=lambda function, gate, up: function(gate)),
    row("gate-activation", "of both", gated=lambda function, gate, up: function(gate) * function(up)),
    row("gate-activation", "of the product", gated=lambda function, gate, up: function(gate * up)),
    row("gate-missing", "added", gated=lambda function, gate, up: function(gate) + up),
)

INSTEAD = "the gate and the up projection are bounded by {v:g}{instead} (swiglu_limit)"
LIMIT = Number("gate-limit", "gate_limit", INSTEAD, activated, "{v:g}")


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    scope, sublayer, tap = split(site)
    own = own_config(config, site)
    if sublayer != "feed_forward" or not own.num_experts:
        return
    if tap == ROUTER_CHOSEN:
        yield from _choices(own)
    if tap == "router_weights":
        yield from _weights(own)
    if site == f"{scope}.feed_forward.output":
        yield from _of_experts(own)


def _choices(config: TransformerConfig) -> Iterator[Fault]:
    chosen = partial(fault, formula=_chosen)
    count, experts = config.experts_per_token, config.num_experts
    available = experts // config.router_groups * config.topk_groups
    counts = {"one": 1, "one fewer": count - 1, "one more": count + 1, "all": available}
    for number in dict.fromkeys(counts.values()):
        if 0 < number <= available and number != count:
            name = next(name for name, each in counts.items() if each == number)
            words = {"name": name, "number": number, "c": config}
            yield chosen("router-count", "{name}", words=words, experts_per_token=number)
    if count < experts:
        yield chosen("router-choice", "lowest", sign=-1)
        yield chosen("router-choice", "first", sign=0)
    if config.router_score_bias:
        yield chosen("router-correction", "missing", correction=0)
        yield chosen("router-correction", "subtracted", correction=-1)
    if config.router_groups > config.topk_groups:
        is_told = count > config.topk_groups  # fewer experts are always in the groups with the highest scores
        yield chosen("router-groups", "ignored" if is_told else "either", topk_groups=config.router_groups)
        if is_told:
            yield chosen("router-groups", "by the highest score", ranked=1)


def _weights(config: TransformerConfig) -> Iterator[Fault]:
    weighted, right = partial(fault, formula=_weighted), config.router_scale
    if not (config.normalize_topk and config.experts_per_token == config.num_experts):
        name = "missing" if config.normalize_topk else "too much"
        yield weighted("router-normalization", name, normalize_topk=not config.normalize_topk)
    yield weighted("router-weights", "missing", weights="one")
    yield weighted("router-weights", "equal", weights="equal")
    if config.router_scores == "softmax":
        yield weighted("router-weights", "softmax twice", weights="softmax twice")
    elif config.experts_per_token > 1:
        yield weighted("router-weights", "softmax of the chosen", weights="softmax of the chosen")
    yield weighted("router-weights", "logits", weights="logits")
    if config.router_scores == "softmax":
        yield weighted("softmax-axis", "tokens", over_tokens=True, also_patched=(ROUTER_CHOSEN,))
    other = next(name for name in SCORES if name != config.router_scores)
    yield weighted("router-scores", other, router_scores=other, also_patched=(ROUTER_CHOSEN,))
    if config.router_score_bias:
        yield weighted("router-correction", "in the weights", weights="corrected")
    for name, factor in OTHER_FACTORS.items() if right != 1 else ():
        yield weighted("router-scale", name, words={"right": right}, router_scale=factor(right))


def _scores(settings: Settings, state: WalkState, site: str, config: TransformerConfig) -> tuple[Value, Value, Any]:
    scope = site.rpartition(".")[0]
    logits = state.taps[f"{scope}.router_logits"]
    flat = logits.reshape(-1, logits.shape[-1]).T
    scores = (
        softmax(flat).T.reshape(logits.shape) if "over_tokens" in settings else SCORES[config.router_scores](logits)
    )
    return logits, scores, state.parameters.get(f"{scope}.router_score_bias")


def _changed(settings: Settings, state: WalkState, site: str) -> TransformerConfig:
    own = own_config(state.config, site)
    return dataclasses.replace(own, **{name: value for name, value in settings.items() if name in vars(own)})


def _chosen(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    config = _changed(settings, state, site)
    _, scores, correction = _scores(settings, state, site, config)
    if "correction" in settings:
        correction = settings["correction"] * correction
    if "sign" in settings:
        return highest(settings["sign"] * scores, config.experts_per_token).astype(value.dtype)
    if "ranked" in settings:
        return _by_groups(settings, config, scores if correction is None else scores + correction).astype(value.dtype)
    return choose(config, scores, correction).astype(value.dtype)


def _by_groups(settings: Settings, config: TransformerConfig, scores: Value) -> Value:
    groups = scores.reshape(*scores.shape[:-1], config.router_groups, -1)
    ranks = np.sort(groups, axis=-1)[..., -settings["ranked"] :].sum(axis=-1)
    best = np.repeat(highest(ranks, config.topk_groups), groups.shape[-1], axis=-1)
    return highest(np.where(best == 1, scores, -np.inf), config.experts_per_token)


def _weighted(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    if site.endswith(ROUTER_CHOSEN):
        return _chosen(settings, state, site, value)
    config = _changed(settings, state, site)
    logits, scores, correction = _scores(settings, state, site, config)
    chosen = state.taps[f"{site.rpartition('.')[0]}.{ROUTER_CHOSEN}"]
    kind = settings.get("weights")
    if kind in ("one", "equal"):
        return (chosen / (config.experts_per_token if kind == "equal" else 1)).astype(value.dtype)
    if kind == "logits":
        return np.where(chosen != 0, logits, 0).astype(value.dtype)
    if kind == "softmax of the chosen":
        scores = softmax(np.where(chosen != 0, scores, -np.inf))
    if kind == "corrected" and correction is not None:
        scores = scores + correction
    scores = softmax(scores) if kind == "softmax twice" else scores
    return router_weights(config, scores, chosen).astype(value.dtype)


PACKINGS: dict[str, tuple[int, Callable[[Value], Value]]] = {
    "high first": (2, lambda blocks: blocks[..., ::-1]),  # swap the two weights in each byte
    "split": (
        32,
        lambda blocks: blocks.reshape(*blocks.shape[:-1], 2, 16).swapaxes(-1, -2),
    ),  # put low half-bytes first
    "scale twice": (1, lambda blocks: blocks * 2),
    "scale half": (1, lambda blocks: blocks / 2),
}
"""Wrong ways to unpack four-bit weights, as (block size, function of features (…, blocks, block size))."""


def _unpacked(size: int, change: Callable[[Value], Value], x: Value) -> Value:
    return change(x.reshape(*x.shape[:-1], -1, size)).reshape(x.shape)


def _cut_as(order: Rows, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    """Return gate and up projections, cut out of a packed matrix in a wrong order."""
    part = f"{split(site)[0]}.feed_forward"
    places = [f"{part}.experts.{expert}" for expert in range(own_config(config, site).num_experts)] or [part]
    return dict(ChainMap(*[repacked([f"{each}.gate", f"{each}.up"], order, config, parameters) for each in places]))


def _of_other_experts(
    source: Callable[[int, int], int], roles: Sequence[str], config: TransformerConfig, parameters: Arrays, site: str
) -> Arrays:
    part, experts = f"{split(site)[0]}.feed_forward.experts", own_config(config, site).num_experts
    sources = {expert: source(expert, experts) for expert in range(experts)}
    ends = [f"{role}.{kind}" for role in roles for kind in ("weight", "bias")]
    return {
        f"{part}.{expert}.{end}": parameters[f"{part}.{other}.{end}"]
        for expert, other in sources.items()
        for end in ends
        if f"{part}.{expert}.{end}" in parameters
    }


def _of_experts(config: TransformerConfig) -> Iterator[Fault]:
    orders: dict[str, Callable[[int, int], int]] = {
        "reversed": lambda expert, count: count - 1 - expert,
        "next": lambda expert, count: (expert + 1) % count,
        "first": lambda expert, count: 0,
    }
    for name, source in orders.items() if config.num_experts > 1 else ():
        if not (name == "next" and config.num_experts == 2):
            yield fault("expert-order", name, alter=partial(_of_other_experts, source, ("gate", "up", "down")))
    for role in ("gate", "up", "down")[not config.gated :] if config.num_experts > 1 else ():
        alter = partial(_of_other_experts, orders["first"], (role,))
        yield fault("expert-order", "first, {role}", words={"role": role}, alter=alter)
    yield fault("router-weights", "of the input", formula=activated, weighs_input=True)
    if config.feed_forward_bias:
        yield fault("router-weights", "not of the biases", formula=activated, bare=1)
    for name, (size, change) in PACKINGS.items():
        if config.embed_dim % size == 0:
            yield fault("expert-packing", name, formula=activated, unpacked=partial(_unpacked, size, change))
    if config.shared_expert_dim:
        yield fault("shared-expert", "missing", formula=activated, shared=0)
        if config.router_scale != 1:
            yield fault("shared-expert", "scaled", formula=activated, shared=config.router_scale)
    if config.shared_expert_dim and config.shared_expert_gate:
        yield fault("shared-expert-gate", "missing", formula=activated, through=np.ones_like)
        yield fault("shared-expert-gate", "no sigmoid", formula=activated, through=lambda x: x)
