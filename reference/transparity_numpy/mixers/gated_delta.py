"""Gated delta network (Yang et al. 2025): each token corrects the value that the state has for its key."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import as_precise_as, linear, sigmoid, silu
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.mixers.attention import merge_heads, repeat_heads, split_heads
from transparity_numpy.mixers.recurrence import by_head, convolve, first_state, log_decay, time_step, unpadded
from transparity_numpy.norms.variants import rms_norm
from transparity_numpy.shapes import Channels, Hidden, Parameters, PerHead, QueryHeads, RecurrentValues, State
from transparity_numpy.state.context import Context

UNIT_EPS = 1e-6
"""Small number that is added under the square root when queries and keys are scaled to length 1 (Qwen3-Next)."""


def unit_length(x: QueryHeads) -> QueryHeads:
    """x / √(Σ x² + eps), where the sum is over the features."""
    wide = upcast(x)
    length = np.sqrt((wide * wide).sum(axis=-1, keepdims=True) + wide.dtype.type(UNIT_EPS))
    return as_precise_as(x, wide / length)


def gated_delta_rule(
    query: QueryHeads, key: QueryHeads, value: RecurrentValues, log_decay: PerHead, beta: PerHead, state: State
) -> tuple[RecurrentValues, State]:
    """S ← e^log_decay · S; S ← S + k ⊗ β (v − k S); y = q S / √head_dim (Yang et al. 2025, eq. 10).

    Return y for each position, and the last state S. The positions are computed one after another.
    """
    read = np.zeros(value.shape, np.result_type(query, key, value, log_decay, beta, state))
    scale = query.real.dtype.type(query.shape[-1] ** -0.5)
    for i in range(query.shape[2]):
        state = state * np.exp(log_decay[:, :, i, None, None])
        change = beta[:, :, i, None, None] * (value[:, :, i, None] - key[:, :, i, None] @ state)
        state = state + key[:, :, i, :, None] * change
        read[:, :, i] = (query[:, :, i, None] @ state)[:, :, 0] * scale
    return read, state


def gated_head_norm(config: TransformerConfig, parameters: Parameters, x: Channels, gate: Channels) -> Channels:
    """rms_norm(x) · silu(gate), with the norm over each head."""
    heads = x.reshape(*x.shape[:2], config.recurrent_heads, -1)
    return rms_norm(heads, parameters["weight"], config.norm_eps).reshape(x.shape) * silu(gate)


def gated_delta(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """Gated delta network (Yang et al. 2025, §3.4), whose state starts with the cached state or, without a cache, with
    zeros.

    Zeros replace masked padding in `x`. The convolutions still mix earlier tokens into the padding's keys and values.
    """
    tap, x = context.tap, unpadded(config, x, context)
    heads, shared = config.recurrent_heads, config.recurrent_key_heads
    query, key, value = (
        tap(f"{name}_convolved", convolve(config, parameters, name, x, context)) for name in ("query", "key", "value")
    )
    query = tap("query_normalized", unit_length(split_heads(query, shared)))
    key = tap("key_normalized", unit_length(split_heads(key, shared)))
    beta = tap("beta", sigmoid(linear(parameters["beta"], x)))
    decay = tap("log_decay", log_decay(parameters, time_step(config, parameters, x)))
    query, key = (upcast(repeat_heads(each, heads)) for each in (query, key))
    state, value = first_state(config, query, context), upcast(split_heads(value, heads))
    read, state = gated_delta_rule(query, key, value, by_head(decay, context), by_head(beta, context), state)
    if context.cache is not None:
        context.cache["state"] = state
    read = tap("context", as_precise_as(x, merge_heads(read)))
    gate = linear(parameters["gate"], x)
    y = tap("gated_context", gated_head_norm(config, parameters["gated_norm"], read, gate))
    return tap("output", linear(parameters["output"], y))
