"""State-space model (Mamba-2, Dao and Gu 2024): each token decays the state and adds to it."""

from __future__ import annotations

import numpy as np

from transparity.config import TransformerConfig
from transparity_numpy.arithmetic.functional import as_precise_as, linear, silu
from transparity_numpy.arithmetic.precision import upcast
from transparity_numpy.mixers.attention import merge_heads, repeat_heads, split_heads
from transparity_numpy.mixers.recurrence import by_head, convolve, first_state, log_decay, time_step, unpadded
from transparity_numpy.norms.variants import rms_norm
from transparity_numpy.shapes import Channels, Hidden, Parameters, PerHead, QueryHeads, RecurrentValues, State
from transparity_numpy.state.context import Context


def state_space_rule(
    query: QueryHeads, key: QueryHeads, value: RecurrentValues, log_decay: PerHead, step: PerHead, state: State
) -> tuple[RecurrentValues, State]:
    """S ← e^log_decay · S + k ⊗ step · v; y = q S (Dao and Gu 2024, eq. 2, with C, B, x for q, k, v).

    Return y for each position, and the last state S.
    """
    read = np.zeros(value.shape, np.result_type(query, key, value, log_decay, step, state))
    for i in range(query.shape[2]):
        change = step[:, :, i, None, None] * value[:, :, i, None]
        state = state * np.exp(log_decay[:, :, i, None, None]) + key[:, :, i, :, None] * change
        read[:, :, i] = (query[:, :, i, None] @ state)[:, :, 0]
    return read, state


def gated_group_norm(config: TransformerConfig, parameters: Parameters, x: Channels, gate: Channels) -> Channels:
    """rms_norm(x · silu(gate)) · weight, with the norm over the heads that share a key."""
    groups = (upcast(x) * silu(upcast(gate))).reshape(*x.shape[:2], config.recurrent_key_heads, -1)
    ones = np.ones(groups.shape[-1], groups.real.dtype)
    return as_precise_as(x, rms_norm(groups, ones, config.norm_eps).reshape(x.shape) * parameters["weight"])


def state_space(config: TransformerConfig, parameters: Parameters, x: Hidden, context: Context) -> Hidden:
    """Mamba-2 (Dao and Gu 2024, §7.1), whose state starts with the cached state or, without a cache, with zeros.

    Zeros replace masked padding before and after the convolutions, so padding only lets the state decay.
    """
    tap, x = context.tap, unpadded(config, x, context)
    heads, shared = config.recurrent_heads, config.recurrent_key_heads
    query, key, value = (
        tap(f"{name}_convolved", unpadded(config, convolve(config, parameters, name, x, context), context))
        for name in ("query", "key", "value")
    )
    step = tap("time_step", as_precise_as(x, time_step(config, parameters, x)))
    decay = tap("log_decay", log_decay(parameters, step))
    query, key = (upcast(repeat_heads(split_heads(each, shared), heads)) for each in (query, key))
    state, value = first_state(config, query, context), upcast(split_heads(value, heads))
    read, state = state_space_rule(query, key, value, by_head(decay, context), by_head(step, context), state)
    read = read + upcast(parameters["D"])[:, None, None] * value
    if context.cache is not None:
        context.cache["state"] = state
    read = tap("context", as_precise_as(x, merge_heads(read)))
    gate = linear(parameters["gate"], x)
    y = tap("gated_context", gated_group_norm(config, parameters["gated_norm"], read, gate))
    return tap("output", linear(parameters["output"], y))
