"""Faults of feed-forward layers, including experts: the activation, the gate and their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue.fault import Fault, FaultRow, Number, Settings, WalkState, fault, made, row
from transparity_conformance.catalogue.sites import Value, apply_linear, parameters_of, sublayer_input
from transparity_conformance.oracle.undetermined import own_config, split
from transparity_numpy.arithmetic.functional import sigmoid
from transparity_numpy.feed_forward import ACTIVATIONS as RIGHT

Bound = Callable[[float, Value, Value], tuple[Value, Value]]
"""A function that bounds the gate and the up projection, given the limit and both."""


def _bound(variant: str, bound: Bound) -> FaultRow:
    return row("gate-limit", variant, lambda c: c.gate_limit is not None, bounded=bound)


BOUNDS = (
    _bound("missing", lambda limit, gate, up: (gate, up)),
    _bound("gate alone", lambda limit, gate, up: (np.minimum(gate, limit), up)),
    _bound("up alone", lambda limit, gate, up: (gate, np.clip(up, -limit, limit))),
    _bound("both sides", lambda limit, gate, up: (np.clip(gate, -limit, limit), np.clip(up, -limit, limit))),
    _bound("above alone", lambda limit, gate, up: (np.minimum(gate, limit), np.minimum(up, limit))),
)
"""Wrong bounds of the gate and the up projection (swiglu_limit)."""


def gate_faults(config: TransformerConfig) -> Iterator[Fault]:
    """Yield faults of a gate: its product with the up projection, its bounds and its offset."""
    yield from made(GATES, config, activated)
    yield from made(BOUNDS, config, activated)
    if config.gate_limit is not None:
        yield from LIMIT.usual(config)
    if offset := config.up_offset:
        other = partial(fault, "up-offset", formula=activated)
        yield other("missing", says=f"{offset:g} is not added to the up projection", offset=0.0)
        yield other("subtracted", says=f"{offset:g} is subtracted from the up projection, not added", offset=-offset)
        says = f"{offset:g} is added to the activated gate, not to the up projection"
        yield other("of the gate", says=says, offset=0.0, gated=partial(_with_offset, offset))


def _with_offset(offset: float, function: Callable[[Value], Value], gate: Value, up: Value) -> Value:
    """Add the offset to the activated gate instead of the up projection."""
    return (function(gate) + gate.dtype.type(offset)) * up


def mixed(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Return the output of a layer's experts, computed with changed settings."""
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
    function = settings.get("function", RIGHT[config.activation])
    up = apply_linear(state, f"{scope}.up", x)
    if not config.gated:
        return function(up)
    return gated(settings, config, function, apply_linear(state, f"{scope}.gate", x), up)


def gated(
    settings: Settings, config: TransformerConfig, function: Callable[[Value], Value], gate: Value, up: Value
) -> Value:
    """Return the product of gate and up projection with a changed `bounded`, `gate_limit`, `offset` or `gated`."""
    limit = settings.get("gate_limit", config.gate_limit)
    gate, up = settings.get("bounded", bounded)(limit, gate, up)
    up = up + up.dtype.type(settings.get("offset", config.up_offset))
    combined = settings.get("gated", lambda function, gate, up: function(gate) * up)
    return combined(function, gate, up)


def bounded(limit: float | None, gate: Value, up: Value) -> tuple[Value, Value]:
    """Bound the gate from above, and the up projection from both sides."""
    return (gate, up) if limit is None else (np.minimum(gate, limit), np.clip(up, -limit, limit))


def is_activated(config: TransformerConfig, site: str) -> bool:
    """Return whether a tap shows the hidden features or, in a layer with experts, the sum of their outputs."""
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
    "leaky": (lambda x: np.where(x > 0, x, 0.01 * x), "leaky ReLU (0.01)"),
    "relu6": (lambda x: np.clip(x, 0, 6), "ReLU6"),
    "elu": (lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))), "ELU"),
    "none": (lambda x: x, "no activation"),
}
"""The reference's activations, and other activations that ports use."""


def _projected(settings: Settings, state: WalkState, site: str, role: str) -> Value:
    scope, sublayer, _ = split(site)
    x = settings["source"](state, scope) if "source" in settings else sublayer_input(state, scope, sublayer)
    return apply_linear(state, f"{site.removesuffix('.hidden')}.{role}", x)


def activated(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    """Return a feed-forward's hidden features, or the sum of its experts, computed with changed settings."""
    if site.endswith(".output"):
        return mixed(settings, state, site, value)
    function = settings.get("function", RIGHT[state.config.activation])
    up = _projected(settings, state, site, "up")
    if not state.config.gated:
        return function(up).astype(value.dtype)
    gate = _projected(settings, state, site, "gate")
    return gated(settings, state.config, function, gate, up).astype(value.dtype)


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
