"""Faults of recurrences, and of attention gates."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from transparity.config import TransformerConfig
from transparity_conformance.catalogue import sites
from transparity_conformance.catalogue.attention import tiled_heads
from transparity_conformance.catalogue.fault import Fault, Settings, WalkState, made
from transparity_conformance.catalogue.feed_forward import ACTIVATIONS, other_activations
from transparity_conformance.catalogue.normalization import norm_with
from transparity_conformance.catalogue.sites import Value
from transparity_conformance.oracle.undetermined import own_config, split
from transparity_numpy.arithmetic.functional import softplus
from transparity_numpy.mixers.attention import merge_heads, repeat_heads, split_heads
from transparity_numpy.mixers.recurrence import causal_convolution


def centred(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    behind = (weight.shape[1] - 1) // 2
    padded = np.pad(x, ((0, 0), (0, behind), (0, 0)))
    before = np.zeros((len(x), weight.shape[1] - 1, x.shape[-1]), x.dtype)
    return causal_convolution(weight, padded, before)[:, behind:]


def causal(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    return causal_convolution(weight, x, np.zeros((len(x), weight.shape[1] - 1, x.shape[-1]), x.dtype))


def is_bounded(config: TransformerConfig) -> bool:
    """Return whether time steps are clipped (time_step_limit)."""
    return config.time_step_min > 0 or config.time_step_max is not None


def faults(config: TransformerConfig, site: str) -> Iterator[Fault]:
    _, sublayer, tap = split(site)
    own = own_config(config, site)
    if own.attention_gate and tap == "gated_context" and sublayer.endswith("attention"):
        yield from made("attention gates", own, _attention_gate)
    if sublayer != "recurrence":
        return
    if tap.endswith("_convolved"):
        yield from _of_convolution(own, site)
    elif tap.endswith("_normalized"):
        which = "queries" if tap.startswith("query") else "keys"
        yield from made("unit lengths", own, _changed, which=which)
    elif tap == "beta":
        yield from made("beta", own, _changed)
    elif tap == "context":
        yield from made("delta rule" if own.mixer == "gated-delta" else "state space", own, _read)
        yield from made("state decays", own, _read)
    elif tap == "gated_context":
        yield from made("gated norms", own, norm_with)
    else:
        yield from _of_rates(own, tap)


def _of_rates(own: TransformerConfig, tap: str) -> Iterator[Fault]:
    """Yield faults of the decay and the time step. In a mixer with the delta rule, faults of the time step also change
    `log_decay`."""
    if tap == ("log_decay" if own.mixer == "gated-delta" else "time_step"):
        yield from made("time steps", own, _step)
    if tap == "log_decay":
        yield from made("decays", own, _step)


def _of_convolution(own: TransformerConfig, site: str) -> Iterator[Fault]:
    yield from made("convolutions", own, _convolved)
    yield from other_activations("recurrent-activation", "silu", _convolved, " after the convolution", "missing")


def _scope(site: str) -> str:
    return site.rpartition(".")[0]


def _convolved(settings: Settings, state: WalkState, site: str, value: Value) -> Value:
    part, own = site.removesuffix("_convolved"), own_config(state.config, site)
    kernel = sites.parameters_of(state, f"{part}_convolution")
    y = settings.get("kernel", causal)(
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
