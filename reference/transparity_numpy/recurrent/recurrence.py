"""Recurrence: a state, which each token decays, writes to and reads, in place of self-attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Inexact
from numpy import ndarray as Array

from transparity.config import TransformerConfig
from transparity.taps import Tap, identity
from transparity_numpy.arithmetic.functional import as_precise_as, linear, sigmoid, silu, softplus
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.attention import merge_heads, repeat_heads, split_heads
from transparity_numpy.normalization import rms_norm
from transparity_numpy.state.cache import Cache, held_tokens, update_inputs, update_state
from transparity_numpy.state.context import LayerContext

UNIT_EPS = 1e-6
"""Added to the square of the length of queries and keys, under the root (Qwen3-Next)."""


def causal_convolution(
    weight: Inexact[Array, "features width"],
    x: Inexact[Array, "batch length features"],
    before: Inexact[Array, "batch earlier features"],
    bias: Inexact[Array, " features"] | None = None,
) -> Inexact[Array, "batch length features"]:
    """Sum of each feature's last `width` numbers, its own the last, each times a weight of the feature, and `bias`;
    those in front of `x` are `before`."""
    width, x = weight.shape[1], np.concatenate([before, x], axis=1)
    length = x.shape[1] - width + 1
    shifted = np.stack([x[:, i : i + length] for i in range(width)], axis=-1)
    return (shifted * weight).sum(axis=-1) + (0 if bias is None else bias)


def unit_length(x: Inexact[Array, "*batch features"]) -> Inexact[Array, "*batch features"]:
    """x / √(Σ x² + eps) over the features."""
    wide = upcast(x)
    length = np.sqrt((wide * wide).sum(axis=-1, keepdims=True) + wide.dtype.type(UNIT_EPS))
    return as_precise_as(x, wide / length)


def time_step(
    config: TransformerConfig, parameters: Mapping[str, Any], x: Inexact[Array, "batch length embed_dim"]
) -> Inexact[Array, "batch length heads"]:
    """softplus(x Wᵀ + b), within bounds: the time that the state decays for (Gu and Dao 2024, §3.6)."""
    step = softplus(upcast(linear(parameters["decay"], x)) + upcast(parameters["dt_bias"]))
    least, most = config.time_step_min, config.time_step_max
    within = (step.real >= least) & (most is None or step.real <= most)
    return np.where(within, step, np.clip(step.real, least, most))


def log_decay(
    parameters: Mapping[str, Any], step: Inexact[Array, "batch length heads"]
) -> Inexact[Array, "batch length heads"]:
    """Logarithm of the share of the state that stays: −exp(A_log) · the time step (Gu and Dao 2024)."""
    return -np.exp(upcast(parameters["A_log"])) * step


def gated_delta_rule(
    query: Inexact[Array, "batch heads length head_dim"],
    key: Inexact[Array, "batch heads length head_dim"],
    value: Inexact[Array, "batch heads length value_dim"],
    log_decay: Inexact[Array, "batch heads length"],
    beta: Inexact[Array, "batch heads length"],
    state: Inexact[Array, "batch heads head_dim value_dim"],
) -> tuple[Inexact[Array, "batch heads length value_dim"], Inexact[Array, "batch heads head_dim value_dim"]]:
    """What each query reads from the state, and the last state: S ← e^log_decay · S; S ← S + k ⊗ β (v − k S); then
    q S / √head_dim (Yang et al. 2025, eq. 10). One position after the other."""
    read = np.zeros(value.shape, np.result_type(query, key, value, log_decay, beta, state))
    scale = query.real.dtype.type(query.shape[-1] ** -0.5)
    for i in range(query.shape[2]):
        state = state * np.exp(log_decay[:, :, i, None, None])
        change = beta[:, :, i, None, None] * (value[:, :, i, None] - key[:, :, i, None] @ state)
        state = state + key[:, :, i, :, None] * change
        read[:, :, i] = (query[:, :, i, None] @ state)[:, :, 0] * scale
    return read, state


def state_space_rule(
    query: Inexact[Array, "batch heads length head_dim"],
    key: Inexact[Array, "batch heads length head_dim"],
    value: Inexact[Array, "batch heads length value_dim"],
    log_decay: Inexact[Array, "batch heads length"],
    step: Inexact[Array, "batch heads length"],
    state: Inexact[Array, "batch heads head_dim value_dim"],
) -> tuple[Inexact[Array, "batch heads length value_dim"], Inexact[Array, "batch heads head_dim value_dim"]]:
    """What each query reads from the state, and the last state, which nothing corrects: S ← e^log_decay · S + k ⊗ step
    · v; then q S (Dao and Gu 2024, eq. 2; q, k and v are C, B and x there)."""
    read = np.zeros(value.shape, np.result_type(query, key, value, log_decay, step, state))
    for i in range(query.shape[2]):
        change = step[:, :, i, None, None] * value[:, :, i, None]
        state = state * np.exp(log_decay[:, :, i, None, None]) + key[:, :, i, :, None] * change
        read[:, :, i] = (query[:, :, i, None] @ state)[:, :, 0]
    return read, state


def gated_norm(
    config: TransformerConfig,
    parameters: Mapping[str, Array],
    x: Inexact[Array, "batch length features"],
    gate: Inexact[Array, "batch length features"],
) -> Inexact[Array, "batch length features"]:
    """RMS norm of each head, whose gain is its weight, times silu of the gate; with a state-space model, of x · silu of
    the gate, over the heads that share a key, and each feature has a weight."""
    weight = parameters["weight"]
    if config.mixer == "gated-delta":
        heads = x.reshape(*x.shape[:2], config.recurrent_heads, -1)
        return rms_norm(heads, weight, config.norm_eps).reshape(x.shape) * silu(gate)
    groups = (upcast(x) * silu(upcast(gate))).reshape(*x.shape[:2], config.recurrent_key_heads, -1)
    ones = np.ones(groups.shape[-1], groups.real.dtype)
    return as_precise_as(x, rms_norm(groups, ones, config.norm_eps).reshape(x.shape) * weight)


def unpadded(x: Inexact[Array, "*batch features"], context: LayerContext) -> Inexact[Array, "*batch features"]:
    """`x` with zeros for padding, where it is masked."""
    return x if context.is_token is None else x * context.is_token[..., None].astype(x.real.dtype)


def convolve(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    name: str,
    x: Inexact[Array, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Inexact[Array, "batch length features"]:
    """The `query`, `key` or `value` of all heads: projected, convolved over time, and through silu."""
    x, kernel = linear(parameters[name], x), parameters[f"{name}_convolution"]
    before = np.zeros((len(x), config.convolution_width - 1, x.shape[-1]), x.dtype)
    if cache is not None:
        before = update_inputs(cache, name, x, context.valid_lengths)
    y = silu(causal_convolution(kernel["weight"], x, before, kernel.get("bias")))
    return tap(f"{name}_convolved", unpadded(y, context) if config.mixer == "state-space" else y)


def rates(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch length embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> tuple[Inexact[Array, "batch heads length"], Inexact[Array, "batch heads length"]]:
    """Logarithm of the share of the state that each token leaves, and how strongly it writes: by beta, a sigmoid, or by
    the time step itself (`state-space`)."""
    step = time_step(config, parameters, x)
    if config.mixer == "gated-delta":
        strength = tap("beta", sigmoid(linear(parameters["beta"], x)))
    else:
        strength = step = tap("time_step", as_precise_as(x, step))
    decay = tap("log_decay", log_decay(parameters, step))
    if cache is not None:
        decay, strength = held_tokens(decay, context.valid_lengths), held_tokens(strength, context.valid_lengths)
    return upcast(decay.swapaxes(1, 2)), upcast(strength.swapaxes(1, 2))


def recurrence(
    config: TransformerConfig,
    parameters: Mapping[str, Any],
    x: Inexact[Array, "batch queries embed_dim"],
    context: LayerContext,
    tap: Tap = identity,
    cache: Cache | None = None,
) -> Inexact[Array, "batch queries embed_dim"]:
    """Gated delta network (Yang et al. 2025, §3.4) or Mamba-2 (Dao and Gu 2024, §7.1); with a `cache`, it goes on from
    the state there.

    Padding is zeros: it writes nothing of its own, but decays the state, and convolutions pass over it.
    """
    x = unpadded(x, context)
    query, key, value = (
        convolve(config, parameters, name, x, context, tap, cache) for name in ("query", "key", "value")
    )
    heads, shared, is_delta = config.recurrent_heads, config.recurrent_key_heads, config.mixer == "gated-delta"
    query, key, value = split_heads(query, shared), split_heads(key, shared), upcast(split_heads(value, heads))
    if is_delta:
        query = tap("query_normalized", unit_length(query))
        key = tap("key_normalized", unit_length(key))
    decay, strength = rates(config, parameters, x, context, tap, cache)
    query, key = (upcast(repeat_heads(each, heads)) for each in (query, key))
    size = (len(x), heads, config.recurrent_key_dim, config.recurrent_value_dim)
    state = np.zeros(size, query.real.dtype) if cache is None else cache["state"]
    rule = gated_delta_rule if is_delta else state_space_rule
    read, state = rule(query, key, value, decay, strength, state)
    if not is_delta:
        read = read + upcast(parameters["D"])[:, None, None] * value
    if cache is not None:
        update_state(cache, state)
    read = tap("context", as_precise_as(x, merge_heads(read)))
    y = tap("gated_context", gated_norm(config, parameters["gated_norm"], read, linear(parameters["gate"], x)))
    return tap("output", linear(parameters["output"], y))
