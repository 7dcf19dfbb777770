"""Faults of recurrences, and of attention gates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import sites
from transparity_conformance.catalogue.attention import tiled_heads
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState, fault, made, row, variants
from transparity_conformance.catalogue.feed_forward import ACTIVATIONS, other_activations
from transparity_conformance.catalogue.normalization import norm_with
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.undetermined import own_config, split
from transparity_numpy.arithmetic.functional import sigmoid, silu, softplus
from transparity_numpy.mixers.attention import merge_heads, repeat_heads, split_heads
from transparity_numpy.mixers.recurrence import causal_convolution


def _centred(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    behind = (weight.shape[1] - 1) // 2
    padded = np.pad(x, ((0, 0), (0, behind), (0, 0)))
    before = np.zeros((len(x), weight.shape[1] - 1, x.shape[-1]), x.dtype)
    return causal_convolution(weight, padded, before)[:, behind:]


def _causal(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    return causal_convolution(weight, x, np.zeros((len(x), weight.shape[1] - 1, x.shape[-1]), x.dtype))


CONVOLUTIONS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "centred": _centred,
    "future": lambda weight, x: _causal(weight[:, ::-1], x[:, ::-1])[:, ::-1],
    "missing": lambda weight, x: x,
    "turned": lambda weight, x: _causal(weight[:, ::-1], x),
    "late": lambda weight, x: np.pad(_causal(weight, x), ((0, 0), (1, 0), (0, 0)))[:, :-1],
}
"""(weights (features, width), input) → a wrong convolution, before the activation function."""

LENGTHS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "missing": lambda x: x,
    "of the mean": lambda x: x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-6),
}

STEPS: Mapping[str, Callable[..., np.ndarray]] = {
    "softplus missing": lambda x, bias, bounded: bounded(x + bias),
    "sigmoid": lambda x, bias, bounded: bounded(sigmoid(x + bias)),
    "bias missing": lambda x, bias, bounded: bounded(softplus(x)),
    "bias behind": lambda x, bias, bounded: bounded(softplus(x) + bias),
}

BOUNDS: Mapping[str, Callable[..., np.ndarray]] = {
    "bounds missing": lambda x, bias, bounded: softplus(x + bias),
    "bounds in front": lambda x, bias, bounded: softplus(bounded(x + bias)),
}

DECAYS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "exp missing": lambda rate, step: rate * step,
    "grows": lambda rate, step: np.exp(rate) * step,
    "rate missing": lambda rate, step: -step,
    "step missing": lambda rate, step: -np.exp(rate) + 0 * step,
}

BETAS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "sigmoid missing": lambda x: x,
    "twice": lambda x: 2 * sigmoid(x),
    "softplus": softplus,
}

STATE_DECAYS = (
    row("state-decay", "decay missing", decays=np.ones_like),
    row("state-decay", "not exp", decays=lambda g: g),
    row("state-decay", "behind", order="decay behind"),
)

_rule = partial(row, "delta-rule")
RULES = (
    row("read-out-scale", "scale missing", scaled=False),
    row("read-out-scale", "scale of values", of_values=True),
    *STATE_DECAYS,
    _rule("no correction", order="no correction"),
    _rule("before the decay", order="early correction"),
    _rule("strength of values alone", order="beta of values"),
    _rule("read first", order="read first"),
)

_state = partial(row, "state-space")
STATES = (
    *STATE_DECAYS,
    _state("read first", order="read first"),
    _state("step missing", strength=np.ones_like),
    _state("step twice", strength=np.square),
    _state("exchanged", exchanged=True),
    row("read-out-scale", "scaled", scaled=True),
    row("skip", "missing", skip=lambda skip, step: 0 * skip),
    row("skip", "all alike", skip=lambda skip, step: 1.0),
    row("skip", "of the step", skip=lambda skip, step: skip * step),
)

_gate = partial(row, "recurrent-gate")
_norm = partial(row, "gated-norm")
NORMED = (
    _norm("missing", order="no norm"),
    _norm("weight alone", order="weight"),
    _gate("gate missing", gate=np.ones_like),
    _gate("sigmoid", gate=sigmoid),
    _gate("linear", gate=lambda z: z),
)

GATED = (
    _norm("gate first", order="gate first"),
    _norm("one plus", offset=1.0),
    _norm("all heads", over="all"),
    *NORMED,
)

GROUPED = (
    *NORMED,
    _norm("gate behind", order="gate behind"),
    _norm("not grouped", lambda own: own.recurrent_key_heads > 1, over="all"),
    _norm("each head", lambda own: own.recurrent_key_heads != own.recurrent_heads, over="head"),
)
"""Wrong gated norms of a state-space model; the right norm follows the gate, and normalizes groups of heads."""

ATTENTION_GATES: Mapping[str, Callable[[np.ndarray], Any]] = {
    "missing": lambda z: 1.0,
    "silu": silu,
    "linear": lambda z: z,
    "tanh": np.tanh,
}


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    own = own_config(config, site)
    if own.attention_gate and tap == "gated_context" and sublayer.endswith("attention"):
        yield from variants("attention-gate", ATTENTION_GATES, _attention_gate, "gate")
    if sublayer != "recurrence":
        return
    is_delta = own.mixer == "gated-delta"
    if tap.endswith("_convolved"):
        yield from _of_convolution(own, site)
    elif tap.endswith("_normalized"):
        which = "queries" if tap.startswith("query") else "keys"
        yield from variants("unit-length", LENGTHS, _changed, "change", {"which": which})
    elif tap == "beta":
        yield from variants("beta", BETAS, _changed, "change")
    elif tap == "context":
        yield from made(RULES if is_delta else STATES, own, _read)
        if 1 < own.recurrent_key_heads < own.recurrent_heads:
            yield fault("recurrent-heads", "tiled", formula=_read, tiled=True)
    elif tap == "gated_context":
        yield from made(GATED if is_delta else GROUPED, own, norm_with)
    else:
        yield from _of_rates(own, tap)


def _of_rates(own: TransformerConfig, tap: str) -> Iterator[Fault]:
    """Yield faults of the decay and the time step; with the delta rule, both act at `log_decay`."""
    bounded = own.time_step_min > 0 or own.time_step_max is not None
    if tap == ("log_decay" if own.mixer == "gated-delta" else "time_step"):
        yield from variants("time-step", {**STEPS, **(BOUNDS if bounded else {})}, _step, "step")
    if tap == "log_decay":
        yield from variants("decay", DECAYS, _step, "decay")


def _of_convolution(own: TransformerConfig, site: str) -> Iterator[Fault]:
    for name, kernel in CONVOLUTIONS.items() if own.convolution_width > 1 else ():
        if name != "centred" or own.convolution_width > 2:
            yield fault("recurrent-convolution", name, formula=_convolved, kernel=kernel)
    if own.mixer == "state-space" and own.decoder_mask == "causal-and-padding":
        yield fault("recurrent-padding", "in front", formula=_convolved, unpadded=False)
    yield from other_activations("recurrent-activation", "silu", _convolved, " after the convolution", "missing")


def _scope(site: str) -> str:
    return site.rpartition(".")[0]


def _convolved(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    part, own = site.removesuffix("_convolved"), own_config(state.config, site)
    kernel = sites.parameters_of(state, f"{part}_convolution")
    y = settings.get("kernel", _causal)(
        kernel["weight"], sites.apply_linear(state, part, sites.recurrence_input(state, site))
    )
    y = settings.get("function", ACTIVATIONS["silu"][0])(y + kernel.get("bias", 0))
    masked = own.mixer == "state-space" and settings.get("unpadded", True)
    return (sites.unpadded(state, site, y) if masked else y).astype(value.dtype)


def _changed(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    if site.endswith(".beta"):
        x = sites.apply_linear(state, site, sites.recurrence_input(state, site))
    else:
        x = split_heads(state.taps[site.replace("_normalized", "_convolved")], value.shape[1])
    return settings["change"](x).astype(value.dtype)


def _step(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    own, scope = own_config(state.config, site), _scope(site)
    x = sites.apply_linear(state, f"{scope}.decay", sites.recurrence_input(state, site))
    bias = state.parameters[f"{scope}.dt_bias"]
    # Without bounds, a negative step is not clipped.
    bounded = partial(np.clip, a_min=own.time_step_min or -np.inf, a_max=own.time_step_max)
    step = settings.get("step", lambda x, bias, bounded: bounded(softplus(x + bias)))(x, bias, bounded)
    if site.endswith("time_step"):
        return step.astype(value.dtype)
    step = state.taps.get(f"{scope}.time_step", step)
    decay = settings.get("decay", lambda rate, step: -np.exp(rate) * step)
    return decay(state.parameters[f"{scope}.A_log"], step).astype(value.dtype)


def _read(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    own, scope = own_config(state.config, site), _scope(site)
    heads, is_delta, order = own.recurrent_heads, own.mixer == "gated-delta", settings.get("order", "")
    repeat = tiled_heads if settings.get("tiled") else repeat_heads
    roles = ("key", "query") if settings.get("exchanged") else ("query", "key")
    taken = [state.taps[f"{scope}.{role}_{'normalized' if is_delta else 'convolved'}"] for role in roles]
    query, key = (repeat(x if is_delta else split_heads(x, own.recurrent_key_heads), heads) for x in taken)
    values = split_heads(state.taps[f"{scope}.value_convolved"], heads)
    names = ("log_decay", "beta" if is_delta else "time_step")
    decay, step = (state.taps[f"{scope}.{name}"].swapaxes(1, 2) for name in names)
    features = values.shape[-1] if settings.get("of_values") else key.shape[-1]
    query = query * features ** (-0.5 if settings.get("scaled", is_delta) else 0)
    strength, kept = settings.get("strength", lambda step: step)(step), settings.get("decays", np.exp)(decay)
    corrects = is_delta and order != "no correction"
    read = _by_rule(order, query, key, values, kept, strength, corrects=corrects)
    if not is_delta:
        skip = state.parameters[f"{scope}.D"][:, None, None]
        read = read + settings.get("skip", lambda skip, step: skip)(skip, step[..., None]) * values
    return merge_heads(read).astype(value.dtype)


def _by_rule(
    order: str, query: Value, key: Value, values: Value, decay: Value, beta: Value, *, corrects: bool
) -> np.ndarray:
    state = np.zeros((*key.shape[:2], key.shape[-1], values.shape[-1]), values.dtype)
    read = np.zeros_like(values)
    for i in range(key.shape[2]):
        q, k, v = (x[:, :, i, None] for x in (query, key, values))
        kept, strength = decay[:, :, i, None, None], beta[:, :, i, None, None]
        if order == "read first":
            read[:, :, i] = (q @ state)[:, :, 0]
        before = state
        state = state if order == "decay behind" else state * kept
        found = k @ (before if order == "early correction" else state)
        change = strength * (v - found if corrects else v)
        change = strength * v - found if order == "beta of values" else change
        state = state + k.swapaxes(-1, -2) @ change
        state = state * kept if order == "decay behind" else state
        if order != "read first":
            read[:, :, i] = (q @ state)[:, :, 0]
    return read


def _attention_gate(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    scope, sublayer, _ = split(site)
    z = sites.apply_linear(state, f"{_scope(site)}.gate", sites.sublayer_input(state, scope, sublayer))
    return (state.taps[f"{_scope(site)}.context"] * settings["gate"](z)).astype(value.dtype)
