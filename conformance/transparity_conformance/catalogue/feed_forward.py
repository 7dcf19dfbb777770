"""Faults of feed-forward layers: the activation, the gate, and the experts with their router."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from transparity.config import FIELD_TYPES, TransformerConfig
from transparity.taps import ROUTER_CHOSEN
from transparity_conformance.catalogue.fault import (
    Fault,
    Formula,
    Number,
    Settings,
    WalkState,
    fault,
    made,
    with_fields,
)
from transparity_conformance.catalogue.parameters import Rows, in_groups, repacked
from transparity_conformance.catalogue.sites import Value, apply_linear, parameters_of, sublayer_input
from transparity_conformance.oracle.oracle import Arrays
from transparity_conformance.oracle.undetermined import own_config, split
from transparity_numpy.activations import ACTIVATIONS as RIGHT
from transparity_numpy.activations import gated
from transparity_numpy.arithmetic.functional import sigmoid, softmax
from transparity_numpy.experts import SCORES, choose, highest, router_weights


def gate_faults(config: TransformerConfig) -> Iterator[Fault]:
    yield from made("gates", config, activated)
    if config.gate_limit is not None:
        yield from LIMIT.usual(config)


def mixed(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    scope = split(site)[0]
    part, config = f"{scope}.feed_forward", with_fields(own_config(state.config, site), settings)
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
        times = settings.get("shared", lambda config: 1)(config)
        shared = state.taps[f"{part}.shared_expert.output"] * value.dtype.type(times)
        if parameters_of(state, f"{part}.shared_expert_gate"):
            shared = shared * settings.get("through", sigmoid)(apply_linear(state, f"{part}.shared_expert_gate", x))
        total = total + shared
    return total.astype(value.dtype)


def _hidden(settings: Settings, state: WalkState, config: TransformerConfig, scope: str, x: Value) -> Value:
    function = settings.get("function", RIGHT[config.activation])
    up = apply_linear(state, f"{scope}.up", x)
    if not config.gated:
        return function(up)
    gate = apply_linear(state, f"{scope}.gate", x)
    if settings.keys() <= FIELD_TYPES.keys():
        return gated(config, gate, up)
    gate, up = settings.get("bounded", bounded)(config.gate_limit, gate, up)
    up = up + up.dtype.type(settings.get("offset", 1) * config.up_offset)
    if "gate_offset" in settings:
        function = partial(_shifted, function, settings["gate_offset"] * config.up_offset)
    return settings.get("joined", lambda function, gate, up: function(gate) * up)(function, gate, up)


def _shifted(function: Callable[[Value], Value], offset: float, gate: Value) -> Value:
    return function(gate) + gate.dtype.type(offset)


def bounded(limit: float | None, gate: Value, up: Value) -> tuple[Value, Value]:
    return (gate, up) if limit is None else (np.minimum(gate, limit), np.clip(up, -limit, limit))


def is_activated(config: TransformerConfig, site: str) -> bool:
    """Return whether a tap is the hidden features of a feed-forward, or the output of a feed-forward with experts."""
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
    """Yield a fault for each activation function except `right`. `where` ends each description; `missing` is the
    variant in which the port applies no activation function."""
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
    config = with_fields(own_config(state.config, site), settings)
    return _hidden(settings, state, config, site.removesuffix(".hidden"), x).astype(value.dtype)


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
        yield from made("router weights", own, _weighted)
    if site == f"{scope}.feed_forward.output":
        yield from made("experts", own, activated)


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
    yield from made("router choices", config, _chosen)


def _scores(settings: Settings, state: WalkState, site: str, config: TransformerConfig) -> tuple[Value, Value, Any]:
    scope = site.rpartition(".")[0]
    logits = state.taps[f"{scope}.router_logits"]
    flat = logits.reshape(-1, logits.shape[-1]).T
    scores = (
        softmax(flat).T.reshape(logits.shape) if "over_tokens" in settings else SCORES[config.router_scores](logits)
    )
    return logits, scores, state.parameters.get(f"{scope}.router_score_bias")


def _chosen(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    config = with_fields(own_config(state.config, site), settings)
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
    config = with_fields(own_config(state.config, site), settings)
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


def swap_halves_of_bytes(x: Value) -> Value:
    return x.reshape(*x.shape[:-1], -1, 2)[..., ::-1].reshape(x.shape)


def low_halves_first(x: Value) -> Value:
    """Return features in a wrong order: the order of a block of four-bit weights if the low half-bytes come first."""
    return x.reshape(*x.shape[:-1], -1, 2, 16).swapaxes(-1, -2).reshape(x.shape)


def in_halves(config: TransformerConfig, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return in_groups(len(gate), gate, up)


def alternating(config: TransformerConfig, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    return np.argsort(in_groups(len(gate), gate, up))


def cut_as(order: Rows, config: TransformerConfig, parameters: Arrays, site: str) -> Arrays:
    """Return the parameters of a port that reads gate and up projections from a packed matrix in a wrong order."""
    part = f"{split(site)[0]}.feed_forward"
    places = [f"{part}.experts.{expert}" for expert in range(own_config(config, site).num_experts)] or [part]
    return dict(ChainMap(*[repacked([f"{each}.gate", f"{each}.up"], order, config, parameters) for each in places]))


def of_other_experts(
    source: Callable[[int, int], int],
    config: TransformerConfig,
    parameters: Arrays,
    site: str,
    roles: Sequence[str] = ("gate", "up", "down"),
) -> Arrays:
    """Return parameters in which each expert has the parameters of the expert `source(expert, number of experts)`."""
    part, experts = f"{split(site)[0]}.feed_forward.experts", own_config(config, site).num_experts
    sources = {expert: source(expert, experts) for expert in range(experts)}
    ends = [f"{role}.{kind}" for role in roles for kind in ("weight", "bias")]
    return {
        f"{part}.{expert}.{end}": parameters[f"{part}.{other}.{end}"]
        for expert, other in sources.items()
        for end in ends
        if f"{part}.{expert}.{end}" in parameters
    }


def first_expert(expert: int, experts: int) -> int:
    return 0
