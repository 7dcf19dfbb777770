"""The output of experts as a formula with settings: what faults change in it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Settings, WalkState
from transparity_conformance.catalogue.sites import Value, apply_linear, parameters_of, sublayer_input
from transparity_conformance.oracle.masks import own_config, split
from transparity_numpy.arithmetic.functional import sigmoid
from transparity_numpy.feed_forward import ACTIVATIONS


def mixed(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """The output of a layer's experts."""
    scope = split(site)[0]
    part, config = f"{scope}.feed_forward", own_config(state.config, site)
    x = settings["source"](state, scope) if "source" in settings else sublayer_input(state, scope, "feed_forward")
    weights = state.taps[f"{scope}.feed_forward.router_weights"]
    source = settings.get("order", lambda expert, count: expert)
    hidden = partial(_hidden, settings, state, config)
    total = np.zeros_like(value)
    unpacked: Callable[[Value], Value] = settings.get("unpacked", lambda features: features)
    for expert in range(config.num_experts):
        own = f"{part}.experts.{source(expert, config.num_experts)}"
        features = unpacked(hidden(own, unpacked(x)))
        total = total + weights[..., expert, None] * apply_linear(state, f"{own}.down", features)
    if config.shared_expert_dim:
        shared = state.taps[f"{part}.shared_expert.output"] * value.dtype.type(settings.get("shared", 1))
        if parameters_of(state, f"{part}.shared_expert_gate"):
            shared = shared * settings.get("through", sigmoid)(apply_linear(state, f"{part}.shared_expert_gate", x))
        total = total + shared
    return total.astype(value.dtype)


def _hidden(settings: Settings, state: WalkState, config: TransformerConfig, scope: str, x: Value) -> Value:
    function = settings.get("function", ACTIVATIONS[config.activation])
    up = apply_linear(state, f"{scope}.up", x)
    if not config.gated:
        return function(up)
    return gated(settings, config, function, apply_linear(state, f"{scope}.gate", x), up)


def gated(
    settings: Settings, config: TransformerConfig, function: Callable[[Value], Value], gate: Value, up: Value
) -> Value:
    """Hidden features of gate and up, in which `bounded` may be another bound, `offset` another number that is added to
    up, and `gated` another way to put them together."""
    gate, up = settings.get("bounded", bounded)(config.gate_limit, gate, up)
    up = up + up.dtype.type(settings.get("offset", config.up_offset))
    combined = settings.get("gated", lambda function, gate, up: function(gate) * up)
    return combined(function, gate, up)


def bounded(limit: float | None, gate: Value, up: Value) -> tuple[Value, Value]:
    """The gate bounded from above, and the up projection from both sides."""
    return (gate, up) if limit is None else (np.minimum(gate, limit), np.clip(up, -limit, limit))
